#include "text/request_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "text/json_fields.h"
#include "text/tokenizer.h"

namespace zipage {
namespace {

using nlohmann::json;

constexpr int kIntMax = std::numeric_limits<int>::max();
constexpr int kIntMin = std::numeric_limits<int>::min();
const json kFalse = false;
constexpr double kUnbounded = std::numeric_limits<double>::infinity();

void read_logit_bias(JsonFields& fields, const RequestContext& context, SamplingParams& sampling) {
  fields.describe("logit_bias", R"({"type":["object","null"],"additionalProperties":{"type":"number"}})");
  const json* bias = fields.find("logit_bias");
  if (bias == nullptr) return;
  const auto fault = [&](std::string_view what) {
    fields.fail("logit_bias",
                fmt::format("logit_bias must map token ids below {} to numbers; found {}", context.vocab_size, what));
  };
  if (!bias->is_object()) return fault(excerpt(*bias));
  sampling.logit_bias.clear();
  for (const auto& [key, value] : bias->items()) {
    int32_t id = -1;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (error != std::errc() || end != key.data() + key.size() || id < 0 || id >= context.vocab_size) {
      return fault(excerpt(json(key)));
    }
    if (!value.is_number()) return fault(excerpt(value));
    sampling.logit_bias.emplace_back(id, static_cast<float>(std::clamp(value.get<double>(), -100.0, 100.0)));
  }
}

// Completions say logprobs: N; chats say logprobs: true and top_logprobs: N. A line may say either.
void read_logprobs(JsonFields& fields, RequestKind kind, const RequestContext& context, SamplingParams& sampling) {
  const int most = context.max_logprobs < 0 ? context.vocab_size : context.max_logprobs;
  const json* logprobs = fields.find("logprobs");
  std::optional<int> top;
  fields.read("top_logprobs", top, 0, most);
  if (kind == RequestKind::kChat) fields.describe("logprobs", R"({"type":["boolean","null"]})");
  if (kind == RequestKind::kChat || (logprobs != nullptr && logprobs->is_boolean())) {
    if (logprobs == nullptr) logprobs = &kFalse;
    sampling.logprobs = *logprobs == true ? std::optional(top.value_or(0)) : std::nullopt;
  } else {
    fields.read("logprobs", sampling.logprobs, 0, most);
  }
  if (top && !sampling.logprobs) fields.fail("top_logprobs", "top_logprobs needs logprobs to be true");
  fields.read("prompt_logprobs", sampling.prompt_logprobs, 0, most);
}

void check_logprobs_kind(JsonFields& fields, RequestKind kind) {
  const json* logprobs = fields.find("logprobs");
  if (logprobs == nullptr) return;
  if (kind == RequestKind::kChat && !logprobs->is_boolean()) {
    fields.fail("logprobs", fmt::format("logprobs must be true or false, not {}", excerpt(*logprobs)));
  } else if (kind == RequestKind::kCompletion && logprobs->is_boolean()) {
    fields.fail("logprobs", fmt::format("logprobs must be a whole number, not {}", excerpt(*logprobs)));
  }
}

void read_bad_words(JsonFields& fields, const Tokenizer* tokenizer, SamplingParams& sampling) {
  std::vector<std::string> words;
  fields.read_strings("bad_words", words);
  if (words.empty()) return;
  sampling.bad_words.clear();
  for (const std::string& word : words) {
    // A word reads differently at the start of a text and after a space.
    for (const std::string& spelled : {word, " " + word}) {
      std::vector<int32_t> ids = tokenizer->encode(spelled, false, SpecialTokens::kAsText);
      const auto known = std::find(sampling.bad_words.begin(), sampling.bad_words.end(), ids);
      if (!ids.empty() && known == sampling.bad_words.end()) sampling.bad_words.push_back(std::move(ids));
    }
  }
}

void read_sampling(JsonFields& fields, RequestKind kind, const RequestContext& context, SamplingParams& sampling) {
  fields.read("temperature", sampling.temperature, {0, kUnbounded});
  fields.read("top_p", sampling.top_p, {0, 1, true});
  fields.read("top_k", sampling.top_k, -1, kIntMax);
  fields.read("min_p", sampling.min_p, {0, 1});
  fields.read("repetition_penalty", sampling.repetition_penalty, {0, kUnbounded, true});
  fields.read("presence_penalty", sampling.presence_penalty, {-2, 2});
  fields.read("frequency_penalty", sampling.frequency_penalty, {-2, 2});
  fields.read("seed", sampling.seed);
  fields.read("min_tokens", sampling.min_tokens, 0, kIntMax);
  fields.read("ignore_eos", sampling.ignore_eos);
  fields.read("thinking_token_budget", sampling.thinking_token_budget, 0, kIntMax);
  fields.read_token_ids("stop_token_ids", sampling.stop_token_ids, context.vocab_size);
  fields.read_token_ids("allowed_token_ids", sampling.allowed_token_ids, context.vocab_size);
  read_logit_bias(fields, context, sampling);
  check_logprobs_kind(fields, kind);
  read_logprobs(fields, kind, context, sampling);
  read_bad_words(fields, context.tokenizer, sampling);
}

void read_max_tokens(JsonFields& fields, SamplingParams& sampling) {
  fields.read("max_tokens", sampling.max_tokens, 1, kIntMax);
  fields.read("max_completion_tokens", sampling.max_tokens, 1, kIntMax);
  if (sampling.max_tokens > 0 && sampling.min_tokens > sampling.max_tokens) {
    fields.fail("min_tokens",
                fmt::format("min_tokens is {}, more than max_tokens, {}", sampling.min_tokens, sampling.max_tokens));
  }
}

void read_text_options(JsonFields& fields, TextRequest& request) {
  fields.read_strings("stop", request.text.stop);
  fields.read("include_stop_str_in_output", request.text.include_stop_str_in_output);
  fields.read("skip_special_tokens", request.text.skip_special_tokens);
  fields.read("spaces_between_special_tokens", request.text.spaces_between_special_tokens);
  fields.read("add_special_tokens", request.add_special_tokens);
  fields.read("add_generation_prompt", request.add_generation_prompt);
  fields.read("continue_final_message", request.continue_final_message);
  fields.read("chat_template", request.chat_template);
  fields.read_object("chat_template_kwargs", request.chat_template_kwargs);
}

void read_kv_fields(JsonFields& fields, Request& request) {
  fields.read("kv_budget", request.kv_budget, 0, kIntMax);
  fields.read("protect_prompt", request.protect_prompt);
  std::string policy;
  fields.read("kv_policy", policy);
  if (policy.empty()) return;
  request.kv_policy = kv_policy_from_name(policy);
  if (!request.kv_policy) {
    fields.fail("kv_policy",
                fmt::format("kv_policy must be one of {}, not '{}'", fmt::join(kv_policy_names(), ", "), policy));
  }
}

// Plain, or inside vllm_xargs as clients do that only pass vLLM's own fields on; plain ones win.
Status read_kv(JsonFields& fields, Request& request) {
  fields.describe("vllm_xargs", R"({"type":["object","null"]})");
  if (const json* extra = fields.find("vllm_xargs")) {
    if (!extra->is_object()) {
      fields.fail("vllm_xargs", fmt::format("vllm_xargs must be an object, not {}", excerpt(*extra)));
      return fields.status();
    }
    JsonFields inner(*extra);
    read_kv_fields(inner, request);
    ZIPAGE_RETURN_IF_ERROR(inner.status());
  }
  read_kv_fields(fields, request);
  return fields.status();
}

// Text parts are joined; other kinds of content belong to other models.
Status flatten_content(json& message) {
  const auto content = message.find("content");
  if (content == message.end() || content->is_null() || content->is_string()) return {};
  if (!content->is_array()) {
    return invalid_argument(fmt::format("messages: content must be text, not {}", excerpt(*content)))
        .with_param("messages");
  }
  std::string text;
  for (const json& part : *content) {
    const bool is_text =
        part.is_object() && part.value("type", json()) == "text" && part.contains("text") && part["text"].is_string();
    if (!is_text) {
      return invalid_argument(fmt::format("messages: content must be text, not {}", excerpt(part)))
          .with_param("messages");
    }
    if (!text.empty()) text += '\n';
    text += part["text"].get_ref<const std::string&>();
  }
  *content = std::move(text);
  return {};
}

Status read_messages(const json& messages, TextRequest& request) {
  if (!messages.is_array() || messages.empty()) {
    return invalid_argument("messages must be a list of at least one message").with_param("messages");
  }
  for (const json& item : messages) {
    if (!item.is_object() || !item.contains("role") || !item["role"].is_string() || item["role"] == "") {
      return invalid_argument(fmt::format("messages: each must be an object with a role, not {}", excerpt(item)))
          .with_param("messages");
    }
    const json calls = item.value("tool_calls", json());
    if (!calls.is_null() && !(calls.is_array() && std::ranges::all_of(calls, &json::is_object))) {
      return invalid_argument(fmt::format("messages: tool_calls must be a list of objects, not {}", excerpt(calls)))
          .with_param("messages");
    }
    json message = item;
    ZIPAGE_RETURN_IF_ERROR(flatten_content(message));
    request.messages.push_back({to_json_text(message)});
  }
  return {};
}

// The prompts of a completion: a string, ids, strings, or lists of ids.
Status add_prompts(const json& prompt, const RequestContext& context, const TextRequest& base,
                   std::vector<TextRequest>& requests) {
  const auto add_text = [&](const json& text) {
    requests.push_back(base);
    requests.back().prompt = text.get<std::string>();
  };
  const auto add_ids = [&](const json& list) -> Status {
    ZIPAGE_ASSIGN_OR_RETURN(std::vector<int32_t> ids, token_ids_of(list, "prompt", context.vocab_size));
    requests.push_back(base);
    requests.back().prompt_token_ids = std::move(ids);
    return {};
  };
  if (prompt.is_string()) {
    add_text(prompt);
    return {};
  }
  if (!prompt.is_array() || prompt.empty()) {
    return invalid_argument(
               fmt::format("prompt must be a string, token ids, or a list of either, not {}", excerpt(prompt)))
        .with_param("prompt");
  }
  const bool has_several = prompt.front().is_string() || prompt.front().is_array();
  if (!has_several) return add_ids(prompt);
  for (const json& item : prompt) {
    if (item.is_string()) {
      add_text(item);
    } else {
      ZIPAGE_RETURN_IF_ERROR(add_ids(item));
    }
  }
  return {};
}

Status add_line(const json& body, const RequestContext& context, TextRequest base, std::vector<TextRequest>& requests) {
  const auto given = [&](const char* key) { return body.contains(key) && !body[key].is_null(); };
  const int count = (given("prompt") ? 1 : 0) + (given("prompt_token_ids") ? 1 : 0) + (given("messages") ? 1 : 0);
  if (count != 1) {
    return invalid_argument(
               fmt::format("exactly one of prompt, prompt_token_ids and messages is needed, not {}", count))
        .with_param("prompt");
  }
  if (given("prompt")) {
    if (!body["prompt"].is_string()) {
      return invalid_argument(fmt::format("prompt must be a string, not {}", excerpt(body["prompt"])))
          .with_param("prompt");
    }
    base.prompt = body["prompt"].get<std::string>();
  } else if (given("prompt_token_ids")) {
    ZIPAGE_ASSIGN_OR_RETURN(base.prompt_token_ids,
                            token_ids_of(body["prompt_token_ids"], "prompt_token_ids", context.vocab_size));
  } else {
    ZIPAGE_RETURN_IF_ERROR(read_messages(body["messages"], base));
  }
  requests.push_back(std::move(base));
  return {};
}

Status add_requests(const json& body, RequestKind kind, const RequestContext& context, TextRequest base,
                    std::vector<TextRequest>& requests) {
  if (kind == RequestKind::kLine) return add_line(body, context, std::move(base), requests);
  const char* key = kind == RequestKind::kChat ? "messages" : "prompt";
  const auto value = body.find(key);
  if (value == body.end() || value->is_null()) {
    return invalid_argument(fmt::format("{} is missing", key)).with_param(key);
  }
  if (kind == RequestKind::kCompletion) return add_prompts(*value, context, base, requests);
  ZIPAGE_RETURN_IF_ERROR(read_messages(*value, base));
  requests.push_back(std::move(base));
  return {};
}

void read_envelope(JsonFields& fields, RequestKind kind, ParsedRequest& parsed) {
  if (kind == RequestKind::kLine) {
    if (const json* id = fields.find("id")) parsed.id = id->is_string() ? id->get<std::string>() : to_json_text(*id);
  }
  fields.read("request_id", parsed.id);
  fields.read("model", parsed.model);
  fields.read("n", parsed.n, 1, kIntMax);
  fields.read("stream", parsed.stream);
  fields.describe("stream_options",
                  R"({"type":["object","null"],"properties":{"include_usage":{"type":["boolean","null"]},)"
                  R"("continuous_usage_stats":{"type":["boolean","null"]}}})");
  if (const json* options = fields.find("stream_options")) {
    if (!options->is_object()) {
      fields.fail("stream_options", fmt::format("stream_options must be an object, not {}", excerpt(*options)));
      return;
    }
    JsonFields inner(*options);
    inner.read("include_usage", parsed.include_usage);
    inner.read("continuous_usage_stats", parsed.continuous_usage_stats);
    if (!inner.ok()) fields.fail("stream_options", inner.status().message());
  }
  fields.read("echo", parsed.echo);
  fields.read("return_token_ids", parsed.return_token_ids);
  fields.read("kv_stats", parsed.kv_stats);
  fields.read("truncate_prompt_tokens", parsed.truncate_prompt_tokens, -1, kIntMax);
  if (parsed.truncate_prompt_tokens == 0) {
    fields.fail("truncate_prompt_tokens", "truncate_prompt_tokens must be at least 1, or -1 for as many as fit");
  }
}

// Everything but the prompt and the fields of read_answer_fields().
Status read_fields(JsonFields& fields, RequestKind kind, const RequestContext& context, ParsedRequest& parsed,
                   TextRequest& request) {
  request.request.sampling = context.defaults;
  read_envelope(fields, kind, parsed);
  read_sampling(fields, kind, context, request.request.sampling);
  read_max_tokens(fields, request.request.sampling);
  read_text_options(fields, request);
  fields.read("priority", request.request.priority, kIntMin, kIntMax);
  fields.read("cache_salt", request.request.cache_salt);
  ZIPAGE_RETURN_IF_ERROR(fields.status());
  return read_kv(fields, request.request);
}

}  // namespace

Result<ParsedRequest> parse_request(const json& body, RequestKind kind, const RequestContext& context,
                                    std::string_view text) {
  ParsedRequest parsed;
  TextRequest base;
  JsonFields fields(body);
  ZIPAGE_RETURN_IF_ERROR(read_fields(fields, kind, context, parsed, base));
  ZIPAGE_ASSIGN_OR_RETURN(AnswerFields answer, read_answer_fields(body, text));
  base.structured_output = std::move(answer.structured_output);
  base.structured_field = std::move(answer.structured_field);
  base.tools = std::move(answer.tools);
  parsed.tool_use = std::move(answer.tool_use);
  ZIPAGE_RETURN_IF_ERROR(add_requests(body, kind, context, std::move(base), parsed.requests));
  return parsed;
}

FieldTable request_fields(RequestKind kind, const RequestContext& context) {
  FieldTable table;
  const json empty = json::object();
  JsonFields fields(empty, &table);
  ParsedRequest parsed;
  TextRequest request;
  const Status status = read_fields(fields, kind, context, parsed, request);
  ZIPAGE_CHECK(status.ok(), "a request without fields: {}", status.message());
  describe_answer_fields(fields);
  return table;
}

Status truncate_prompt(LLM& llm, const ParsedRequest& parsed, TextRequest& request) {
  if (!parsed.truncate_prompt_tokens) return {};
  ZIPAGE_ASSIGN_OR_RETURN(std::vector<int32_t> ids, llm.tokenize(request));
  // As many as fit leaves room for what the request may put out.
  const int fitting = llm.engine().model().max_model_len - std::max(1, request.request.sampling.max_tokens);
  const int keep = *parsed.truncate_prompt_tokens < 0 ? std::max(1, fitting) : *parsed.truncate_prompt_tokens;
  if (ids.size() > static_cast<size_t>(keep)) ids.erase(ids.begin(), ids.end() - keep);
  request.prompt.reset();
  request.messages.clear();
  request.prompt_token_ids = std::move(ids);
  return {};
}

}  // namespace zipage
