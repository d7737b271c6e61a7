// The pieces of OpenAI's answers as JSON text, written by hand because a stream writes one for every token.
//
// Thread-safety: pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "server/generation.h"
#include "text/tokenizer.h"

namespace zipage {

// In quotes, escaped; invalid UTF-8 becomes U+FFFD.
void append_json_string(std::string& out, std::string_view text);
void append_json_ids(std::string& out, std::span<const int32_t> ids);
// A finite number: JSON has no infinities, so a log-probability is at least -9999.
void append_logprob(std::string& out, float logprob);

// {"prompt_tokens", "total_tokens", "completion_tokens", ...}
void append_usage(std::string& out, const Usage& usage, bool with_kv_stats);
void append_kv_stats(std::string& out, const KvStats& stats);

// [null, {"ID": {"logprob", "rank", "decoded_token"}}, ...], vLLM's
void append_prompt_logprobs(std::string& out, const std::vector<std::optional<TokenLogprobs>>& logprobs,
                            const Tokenizer& tokenizer);
// {"content": [{"token", "logprob", "bytes", "top_logprobs"}]}
void append_chat_logprobs(std::string& out, const std::vector<TokenLogprobs>& logprobs, const Tokenizer& tokenizer);

// {"text_offset", "token_logprobs", "tokens", "top_logprobs"} of a completion, token by token.
class CompletionLogprobs {
 public:
  // as_ids: tokens are spelled "token_id:123". `text_offset`: where the first token's text begins.
  CompletionLogprobs(const Tokenizer& tokenizer, bool as_ids, size_t text_offset);
  void add(const TokenLogprobs& entry);
  void add_first(int32_t token);  // a prompt's first token has no probability
  size_t text_offset() const { return text_offset_; }
  void append_to(std::string& out) const;

 private:
  void add_token(int32_t token);

  const Tokenizer& tokenizer_;
  bool as_ids_;
  size_t text_offset_;
  std::string offsets_, logprobs_, tokens_, tops_;
};

// What one token stands for, as text: U+FFFD for the pieces of a character that it does not hold whole.
std::string token_text(const Tokenizer& tokenizer, int32_t id);

}  // namespace zipage
