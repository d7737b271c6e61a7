// A tokenizer.json and a text: neither may crash the reader, and what is encoded decodes to valid UTF-8.
// The input is the file, a byte 0xFF, and the text; without that byte the text is the file itself.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "text/tokenizer.h"
#include "text/utf8.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t cut = input.find('\xFF');
  const std::string_view json = input.substr(0, cut);
  const std::string_view text = cut == std::string_view::npos ? json : input.substr(cut + 1);
  const auto tokenizer = zipage::Tokenizer::from_json(json, "fuzz");
  if (!tokenizer.ok()) return 0;
  for (const auto specials : {zipage::SpecialTokens::kParse, zipage::SpecialTokens::kAsText}) {
    const auto ids = (*tokenizer)->encode(text, true, specials);
    for (const int32_t id : ids) {
      if (id < 0 || id >= (*tokenizer)->vocab_size()) std::abort();
    }
    if (!zipage::is_valid_utf8((*tokenizer)->decode(ids, false))) std::abort();
  }
  return 0;
}
