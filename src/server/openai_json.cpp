#include "server/openai_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "text/utf8.h"

namespace zipage {
namespace {

constexpr float kLeastLogprob = -9999.0F;

void append_comma(std::string& out) {
  if (!out.empty()) out += ',';
}

void append_bytes(std::string& out, std::string_view bytes) {
  out += '[';
  for (size_t i = 0; i < bytes.size(); ++i) {
    if (i > 0) out += ',';
    fmt::format_to(std::back_inserter(out), "{}", static_cast<unsigned char>(bytes[i]));
  }
  out += ']';
}

void append_chat_token(std::string& out, int32_t token, float logprob, const Tokenizer& tokenizer) {
  out += R"({"token":)";
  append_json_string(out, token_text(tokenizer, token));
  out += R"(,"logprob":)";
  append_logprob(out, logprob);
  out += R"(,"bytes":)";
  append_bytes(out, tokenizer.token_bytes(token));
}

}  // namespace

std::string token_text(const Tokenizer& tokenizer, int32_t id) {
  return replace_invalid_utf8(tokenizer.token_bytes(id));
}

void append_json_string(std::string& out, std::string_view text) {
  if (!is_valid_utf8(text)) return append_json_string(out, replace_invalid_utf8(text));
  out += '"';
  size_t plain = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    if (c >= 0x20 && c != '"' && c != '\\' && c != 0x7F) continue;
    out.append(text, plain, i - plain);
    plain = i + 1;
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      default:
        fmt::format_to(std::back_inserter(out), "\\u{:04x}", c);
    }
  }
  out.append(text, plain, text.size() - plain);
  out += '"';
}

void append_json_ids(std::string& out, std::span<const int32_t> ids) {
  fmt::format_to(std::back_inserter(out), "[{}]", fmt::join(ids, ","));
}

void append_logprob(std::string& out, float logprob) {
  fmt::format_to(std::back_inserter(out), "{}", std::isnan(logprob) ? kLeastLogprob : std::max(logprob, kLeastLogprob));
}

void append_kv_stats(std::string& out, const KvStats& stats) {
  fmt::format_to(std::back_inserter(out),
                 R"({{"resident_tokens":{},"evicted_tokens":{},"compressions":{},"swaps":{}}})", stats.resident_tokens,
                 stats.evicted_tokens, stats.compressions, stats.swaps);
}

void append_usage(std::string& out, const Usage& usage, bool with_kv_stats) {
  fmt::format_to(std::back_inserter(out), R"({{"prompt_tokens":{},"total_tokens":{},"completion_tokens":{})",
                 usage.prompt_tokens, usage.prompt_tokens + usage.completion_tokens, usage.completion_tokens);
  fmt::format_to(std::back_inserter(out), R"(,"prompt_tokens_details":{{"cached_tokens":{}}})", usage.cached_tokens);
  fmt::format_to(std::back_inserter(out), R"(,"completion_tokens_details":{{"reasoning_tokens":{}}})",
                 usage.reasoning_tokens);
  if (with_kv_stats) {
    out += R"(,"kv_stats":)";
    append_kv_stats(out, usage.kv_stats);
  }
  out += '}';
}

void append_prompt_logprobs(std::string& out, const std::vector<std::optional<TokenLogprobs>>& logprobs,
                            const Tokenizer& tokenizer) {
  out += '[';
  const auto add = [&](int32_t token, float logprob, int rank) {
    fmt::format_to(std::back_inserter(out), R"("{}":{{"logprob":)", token);
    append_logprob(out, logprob);
    fmt::format_to(std::back_inserter(out), R"(,"rank":{},"decoded_token":)", rank);
    append_json_string(out, token_text(tokenizer, token));
    out += '}';
  };
  for (size_t i = 0; i < logprobs.size(); ++i) {
    if (i > 0) out += ',';
    if (!logprobs[i]) {
      out += "null";
      continue;
    }
    out += '{';
    add(logprobs[i]->token, logprobs[i]->logprob, logprobs[i]->rank);
    for (size_t rank = 0; rank < logprobs[i]->top.size(); ++rank) {
      const auto& [token, logprob] = logprobs[i]->top[rank];
      if (token == logprobs[i]->token) continue;
      out += ',';
      add(token, logprob, static_cast<int>(rank) + 1);
    }
    out += '}';
  }
  out += ']';
}

void append_chat_logprobs(std::string& out, const std::vector<TokenLogprobs>& logprobs, const Tokenizer& tokenizer) {
  out += R"({"content":[)";
  for (size_t i = 0; i < logprobs.size(); ++i) {
    if (i > 0) out += ',';
    append_chat_token(out, logprobs[i].token, logprobs[i].logprob, tokenizer);
    out += R"(,"top_logprobs":[)";
    for (size_t k = 0; k < logprobs[i].top.size(); ++k) {
      if (k > 0) out += ',';
      append_chat_token(out, logprobs[i].top[k].first, logprobs[i].top[k].second, tokenizer);
      out += '}';
    }
    out += "]}";
  }
  out += "]}";
}

CompletionLogprobs::CompletionLogprobs(const Tokenizer& tokenizer, bool as_ids, size_t text_offset)
    : tokenizer_(tokenizer), as_ids_(as_ids), text_offset_(text_offset) {}

void CompletionLogprobs::add_token(int32_t token) {
  append_comma(offsets_);
  fmt::format_to(std::back_inserter(offsets_), "{}", text_offset_);
  append_comma(tokens_);
  const std::string text = token_text(tokenizer_, token);
  append_json_string(tokens_, as_ids_ ? fmt::format("token_id:{}", token) : text);
  text_offset_ += text.size();
}

void CompletionLogprobs::add_first(int32_t token) {
  add_token(token);
  append_comma(logprobs_);
  logprobs_ += "null";
  append_comma(tops_);
  tops_ += "null";
}

void CompletionLogprobs::add(const TokenLogprobs& entry) {
  add_token(entry.token);
  append_comma(logprobs_);
  append_logprob(logprobs_, entry.logprob);
  append_comma(tops_);
  tops_ += '{';
  std::vector<std::string> seen;  // several tokens may look alike; the likeliest stands for them
  const auto add_top = [&](int32_t token, float logprob) {
    std::string key = as_ids_ ? fmt::format("token_id:{}", token) : token_text(tokenizer_, token);
    if (std::find(seen.begin(), seen.end(), key) != seen.end()) return;
    if (!seen.empty()) tops_ += ',';
    append_json_string(tops_, key);
    tops_ += ':';
    append_logprob(tops_, logprob);
    seen.push_back(std::move(key));
  };
  add_top(entry.token, entry.logprob);
  for (const auto& [token, logprob] : entry.top) add_top(token, logprob);
  tops_ += '}';
}

void CompletionLogprobs::append_to(std::string& out) const {
  fmt::format_to(std::back_inserter(out),
                 R"({{"text_offset":[{}],"token_logprobs":[{}],"tokens":[{}],"top_logprobs":[{}]}})", offsets_,
                 logprobs_, tokens_, tops_);
}

}  // namespace zipage
