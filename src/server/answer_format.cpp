#include "server/answer_format.h"

#include <fmt/format.h>

#include <iterator>
#include <utility>

#include "server/openai_json.h"

namespace zipage {
namespace {

void append_int(std::string& out, int value) {
  const fmt::format_int digits(value);
  out.append(digits.data(), digits.size());
}

std::string head(const AnswerOptions& options, std::string_view object) {
  std::string out = R"({"id":)";
  append_json_string(out, options.id);
  fmt::format_to(std::back_inserter(out), R"(,"object":"{}","created":{},"model":)", object, options.created);
  append_json_string(out, options.model);
  out += R"(,"choices":[)";
  return out;
}

}  // namespace

AnswerFormat::AnswerFormat(AnswerOptions options, const Generation& generation, const Tokenizer& tokenizer)
    : options_(std::move(options)),
      generation_(generation),
      parsed_(generation.parsed()),
      tokenizer_(tokenizer),
      chunk_head_(head(options_, options_.chat ? "chat.completion.chunk" : "text_completion")),
      whole_head_(head(options_, options_.chat ? "chat.completion" : "text_completion")),
      states_(static_cast<size_t>(generation.num_choices())) {}

// ---- what both have

void AnswerFormat::append_finish(std::string& out, const ChoiceDelta& delta, const ChoiceState& state) const {
  out += R"(,"finish_reason":)";
  if (!delta.finished()) {
    out += "null";
  } else if (state.calls_tools && delta.finish_reason == FinishReason::kStop) {
    out += R"("tool_calls")";
  } else {
    fmt::format_to(std::back_inserter(out), "\"{}\"", name(delta.finish_reason));
  }
  if (!delta.finished() && options_.chat) return;
  out += R"(,"stop_reason":)";
  if (delta.stop_token_id) {
    fmt::format_to(std::back_inserter(out), "{}", *delta.stop_token_id);
  } else if (!delta.stop_string.empty()) {
    append_json_string(out, delta.stop_string);
  } else {
    out += "null";
  }
}

std::string AnswerFormat::whole(std::vector<ChoiceDelta>&& choices) {
  std::string out = whole_head_;
  for (size_t i = 0; i < choices.size(); ++i) {
    if (i > 0) out += ',';
    options_.chat ? append_chat_message(out, choices[i]) : append_completion_choice(out, choices[i], true);
  }
  out += R"(],"service_tier":null,"system_fingerprint":null,"usage":)";
  append_usage(out, generation_.usage(), parsed_.kv_stats);
  if (options_.chat) {
    out += R"(,"prompt_logprobs":)";
    const auto& logprobs = choices.front().prompt_logprobs;
    logprobs.empty() ? void(out += "null") : append_prompt_logprobs(out, logprobs, tokenizer_);
    out += R"(,"prompt_token_ids":)";
    parsed_.return_token_ids ? append_json_ids(out, generation_.prompt_ids(0)) : void(out += "null");
  }
  out += R"(,"kv_transfer_params":null})";
  return out;
}

bool AnswerFormat::shows(const ChoiceDelta& delta) const {
  const bool shows_ids = parsed_.return_token_ids && !delta.token_ids.empty();
  const bool thinks = !delta.reasoning.empty() && options_.include_reasoning;
  const bool shows_text = !delta.content.empty() || thinks || !delta.tool_calls.empty();
  const bool echoes = parsed_.echo && !options_.chat && !states_[static_cast<size_t>(delta.index)].begun;
  return shows_text || shows_ids || echoes || delta.finished() || !delta.logprobs.empty();
}

void AnswerFormat::append_chunk(std::string& out, const ChoiceDelta& delta) {
  out += chunk_head_;
  options_.chat ? append_chat_choice(out, delta) : append_completion_choice(out, delta, false);
  append_chunk_end(out, delta.num_output_tokens, delta.index);
}

void AnswerFormat::append_chunk_end(std::string& out, int num_output_tokens, int index) const {
  out += ']';
  if (parsed_.continuous_usage_stats && parsed_.include_usage) {
    const size_t num_prompt = generation_.prompt_ids(index).size();
    fmt::format_to(std::back_inserter(out),
                   R"(,"usage":{{"prompt_tokens":{},"total_tokens":{},"completion_tokens":{}}})", num_prompt,
                   num_prompt + static_cast<size_t>(num_output_tokens), num_output_tokens);
  } else if (parsed_.include_usage || !options_.chat) {
    out += R"(,"usage":null)";
  }
  out += '}';
}

std::string AnswerFormat::usage_chunk() const {
  std::string out = chunk_head_ + R"(],"usage":)";
  append_usage(out, generation_.usage(), parsed_.kv_stats);
  out += '}';
  return out;
}

// ---- completions

void AnswerFormat::append_completion_choice(std::string& out, const ChoiceDelta& delta, bool whole) {
  ChoiceState& state = states_[static_cast<size_t>(delta.index)];
  const bool first = !std::exchange(state.begun, true);
  const bool echo = first && parsed_.echo;
  out += R"({"index":)";
  append_int(out, delta.index);
  out += R"(,"text":)";
  append_json_string(out, echo ? generation_.prompt_text(delta.index) + delta.content : delta.content);
  out += R"(,"logprobs":)";
  append_completion_logprobs(out, delta, state, echo);
  append_finish(out, delta, state);
  out += R"(,"token_ids":)";
  parsed_.return_token_ids ? append_json_ids(out, delta.token_ids) : void(out += "null");
  if (whole) {
    out += R"(,"prompt_logprobs":)";
    delta.prompt_logprobs.empty() ? void(out += "null")
                                  : append_prompt_logprobs(out, delta.prompt_logprobs, tokenizer_);
  }
  out += R"(,"prompt_token_ids":)";
  parsed_.return_token_ids&& first ? append_json_ids(out, generation_.prompt_ids(delta.index)) : void(out += "null");
  out += '}';
}

void AnswerFormat::append_completion_logprobs(std::string& out, const ChoiceDelta& delta, ChoiceState& state,
                                              bool echo) {
  if (delta.logprobs.empty()) {
    out += "null";
    return;
  }
  CompletionLogprobs logprobs(tokenizer_, options_.return_tokens_as_token_ids, state.text_offset);
  if (echo) {
    for (const auto& entry : delta.prompt_logprobs) {
      entry ? logprobs.add(*entry) : logprobs.add_first(generation_.prompt_ids(delta.index).front());
    }
  }
  for (const TokenLogprobs& entry : delta.logprobs) logprobs.add(entry);
  state.text_offset = logprobs.text_offset();
  logprobs.append_to(out);
}

// ---- chats

void AnswerFormat::append_tool_calls(std::string& out, const std::vector<ToolCallDelta>& calls, bool whole) {
  out += '[';
  for (size_t i = 0; i < calls.size(); ++i) {
    const ToolCallDelta& call = calls[i];
    if (i > 0) out += ',';
    out += '{';
    if (!whole) fmt::format_to(std::back_inserter(out), R"("index":{},)", call.index);
    if (!call.id.empty()) {
      out += R"("id":)";
      append_json_string(out, call.id);
      out += R"(,"type":"function",)";
    }
    out += R"("function":{)";
    if (!call.name.empty()) {
      out += R"("name":)";
      append_json_string(out, call.name);
      out += ',';
    }
    out += R"("arguments":)";
    append_json_string(out, call.arguments);
    out += "}}";
  }
  out += ']';
}

std::vector<std::string> AnswerFormat::opening() {
  std::vector<std::string> chunks;
  if (!options_.chat) return chunks;
  const auto add = [&](int index, std::string_view delta, bool first) {
    std::string out = chunk_head_;
    fmt::format_to(std::back_inserter(out), R"({{"index":{},"delta":{},"logprobs":null,"finish_reason":null}})", index,
                   delta);
    append_chunk_end(out, 0, index);
    if (first) {
      out.pop_back();
      out += R"(,"prompt_token_ids":)";
      parsed_.return_token_ids ? append_json_ids(out, generation_.prompt_ids(index)) : void(out += "null");
      out += '}';
    }
    chunks.push_back(std::move(out));
  };
  std::string role = R"({"role":)";
  append_json_string(role, options_.role);
  role += R"(,"content":""})";
  for (int i = 0; i < generation_.num_choices(); ++i) add(i, role, true);
  if (options_.echoed_message.empty()) return chunks;
  std::string echoed = R"({"content":)";
  append_json_string(echoed, options_.echoed_message);
  echoed += '}';
  for (int i = 0; i < generation_.num_choices(); ++i) add(i, echoed, false);
  return chunks;
}

void AnswerFormat::append_chat_choice(std::string& out, const ChoiceDelta& delta) {
  ChoiceState& state = states_[static_cast<size_t>(delta.index)];
  state.calls_tools |= !delta.tool_calls.empty();
  out += R"({"index":)";
  append_int(out, delta.index);
  out += R"(,"delta":{)";
  const char* separator = "";
  const bool thinks = !delta.reasoning.empty() && options_.include_reasoning;
  if (thinks) {
    out += R"("reasoning_content":)";
    append_json_string(out, delta.reasoning);
    separator = ",";
  }
  if (!delta.content.empty() || (!thinks && delta.tool_calls.empty())) {
    out += separator;
    out += R"("content":)";
    append_json_string(out, delta.content);
    separator = ",";
  }
  if (!delta.tool_calls.empty()) {
    out += separator;
    out += R"("tool_calls":)";
    append_tool_calls(out, delta.tool_calls, false);
  }
  out += R"(},"logprobs":)";
  delta.logprobs.empty() ? void(out += "null") : append_chat_logprobs(out, delta.logprobs, tokenizer_);
  append_finish(out, delta, state);
  out += R"(,"token_ids":)";
  parsed_.return_token_ids ? append_json_ids(out, delta.token_ids) : void(out += "null");
  out += '}';
}

void AnswerFormat::append_chat_message(std::string& out, const ChoiceDelta& delta) {
  ChoiceState& state = states_[static_cast<size_t>(delta.index)];
  state.calls_tools = !delta.tool_calls.empty();
  fmt::format_to(std::back_inserter(out), R"({{"index":{},"message":{{"role":)", delta.index);
  append_json_string(out, options_.role);
  out += R"(,"content":)";
  const std::string content = options_.echoed_message + delta.content;
  content.empty() && (state.calls_tools || !delta.reasoning.empty()) ? void(out += "null")
                                                                     : append_json_string(out, content);
  out += R"(,"refusal":null,"annotations":null,"audio":null,"function_call":null,"tool_calls":)";
  append_tool_calls(out, delta.tool_calls, true);
  out += R"(,"reasoning_content":)";
  delta.reasoning.empty() || !options_.include_reasoning ? void(out += "null")
                                                         : append_json_string(out, delta.reasoning);
  out += R"(},"logprobs":)";
  delta.logprobs.empty() ? void(out += "null") : append_chat_logprobs(out, delta.logprobs, tokenizer_);
  append_finish(out, delta, state);
  out += R"(,"token_ids":)";
  parsed_.return_token_ids ? append_json_ids(out, delta.token_ids) : void(out += "null");
  out += '}';
}

}  // namespace zipage
