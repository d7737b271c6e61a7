#include "text/detokenizer.h"

#include <utility>

#include "text/utf8.h"

namespace zipage {

Detokenizer::Detokenizer(const Tokenizer& tokenizer, bool skip_special_tokens, bool at_text_start)
    : tokenizer_(tokenizer),
      skip_special_tokens_(skip_special_tokens),
      strip_space_(at_text_start && tokenizer.strips_leading_space()) {}

std::string Detokenizer::push(int32_t id) {
  if (skip_special_tokens_) {
    const AddedToken* added = tokenizer_.added_token(id);
    if (added != nullptr && added->special) return {};
  }
  std::string_view bytes = tokenizer_.token_bytes(id);
  if (strip_space_ && !bytes.empty()) {
    if (bytes.front() == ' ') bytes.remove_prefix(1);
    strip_space_ = false;
  }
  // What is pending is at most three bytes, so this costs no more than the token's own bytes.
  std::string joined;
  if (!pending_.empty()) {
    joined = std::exchange(pending_, {});
    joined.append(bytes);
    bytes = joined;
  }
  const size_t held = incomplete_utf8_suffix(bytes);
  pending_.assign(bytes.substr(bytes.size() - held));
  bytes.remove_suffix(held);
  return replace_invalid_utf8(bytes);
}

std::string Detokenizer::finish() {
  return replace_invalid_utf8(std::exchange(pending_, {}));
}

}  // namespace zipage
