#include "server/response_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "text/json_fields.h"
#include "text/json_text.h"

namespace zipage {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

Status fault(const char* field, std::string message) {
  return invalid_argument(std::move(message)).with_param(field);
}

bool given(const json& body, const char* key) {
  return body.contains(key) && !body[key].is_null();
}

// Text of a string, or of a list of text parts.
Result<std::string> text_of(const json& content, const char* field) {
  if (content.is_string()) return content.get<std::string>();
  std::string text;
  if (!content.is_array())
    return fault(field, fmt::format("{}: content must be text, not {}", field, excerpt(content)));
  for (const json& part : content) {
    const bool is_text = part.is_object() && part.contains("text") && part["text"].is_string() &&
                         part.value("type", json("text")).is_string() &&
                         part.value("type", std::string("text")).ends_with("text");
    const bool is_refusal = part.is_object() && part.value("type", json()) == "refusal" && part.contains("refusal") &&
                            part["refusal"].is_string();
    if (!is_text && !is_refusal) {
      return fault(field, fmt::format("{}: content must be text, not {}", field, excerpt(part)));
    }
    if (!text.empty()) text += '\n';
    text += part[is_text ? "text" : "refusal"].get_ref<const std::string&>();
  }
  return text;
}

Result<std::string> string_member(const json& item, const char* key) {
  if (!item.contains(key) || !item[key].is_string()) {
    return fault("input", fmt::format("input: {} is missing, in {}", key, excerpt(item)));
  }
  return item[key].get<std::string>();
}

class Conversation {
 public:
  Status add(const json& item) {
    if (!item.is_object()) return fault("input", fmt::format("input: items must be objects, not {}", excerpt(item)));
    const json type = item.value("type", json("message"));
    if (type == "message") return add_message(item);
    if (type == "function_call") return add_call(item);
    if (type == "function_call_output") return add_output(item);
    if (type == "reasoning") return add_reasoning(item);
    return fault("input", fmt::format("input: items of the type {} are not supported", excerpt(type)));
  }
  void add_text(const char* role, std::string text) {
    messages_.push_back(ordered_json{{"role", role}, {"content", std::move(text)}});
  }
  const ordered_json& messages() const { return messages_; }

 private:
  Status add_message(const json& item) {
    ZIPAGE_ASSIGN_OR_RETURN(std::string role, string_member(item, "role"));
    if (role == "developer") role = "system";
    if (!item.contains("content")) return fault("input", "input: a message's content is missing");
    ZIPAGE_ASSIGN_OR_RETURN(std::string text, text_of(item["content"], "input"));
    if (role == "assistant") {
      answer()["content"] = std::move(text);
    } else {
      messages_.push_back(ordered_json{{"role", role}, {"content", std::move(text)}});
    }
    return {};
  }

  Status add_call(const json& item) {
    ZIPAGE_ASSIGN_OR_RETURN(const std::string id, string_member(item, "call_id"));
    ZIPAGE_ASSIGN_OR_RETURN(const std::string name, string_member(item, "name"));
    ZIPAGE_ASSIGN_OR_RETURN(const std::string arguments, string_member(item, "arguments"));
    ordered_json call{{"id", id}, {"type", "function"}};
    call["function"] = ordered_json{{"name", name}, {"arguments", arguments}};
    answer()["tool_calls"].push_back(std::move(call));
    return {};
  }

  Status add_output(const json& item) {
    ZIPAGE_ASSIGN_OR_RETURN(const std::string id, string_member(item, "call_id"));
    if (!item.contains("output")) return fault("input", "input: a call's output is missing");
    ZIPAGE_ASSIGN_OR_RETURN(std::string text, text_of(item["output"], "input"));
    messages_.push_back(ordered_json{{"role", "tool"}, {"tool_call_id", id}, {"content", std::move(text)}});
    return {};
  }

  Status add_reasoning(const json& item) {
    if (!given(item, "content")) return {};
    ZIPAGE_ASSIGN_OR_RETURN(std::string text, text_of(item["content"], "input"));
    // A thought opens a new answer.
    ordered_json message{{"role", "assistant"}, {"content", nullptr}};
    message["reasoning_content"] = std::move(text);
    messages_.push_back(std::move(message));
    return {};
  }

  // What the model said in one turn comes as several items and is one message.
  ordered_json& answer() {
    const bool open = !messages_.empty() && messages_.back()["role"] == "assistant";
    if (!open) messages_.push_back(ordered_json{{"role", "assistant"}, {"content", nullptr}});
    return messages_.back();
  }

  ordered_json messages_ = ordered_json::array();
};

Status refuse_what_needs_a_store(const json& body) {
  for (const char* key : {"previous_response_id", "conversation", "prompt"}) {
    if (given(body, key)) {
      return fault(key,
                   fmt::format("{} needs stored responses, and this server stores none: send the items again", key));
    }
  }
  if (given(body, "background") && body["background"] != false) {
    return fault("background", "background responses are not supported");
  }
  return {};
}

}  // namespace

Result<ResponseChat> response_chat(const json& body, std::string_view text) {
  ZIPAGE_RETURN_IF_ERROR(refuse_what_needs_a_store(body));
  Conversation conversation;
  JsonFields fields(body);
  std::string instructions;
  fields.read("instructions", instructions);
  std::optional<int> max_output_tokens;
  fields.read("max_output_tokens", max_output_tokens, 1, std::numeric_limits<int>::max());
  std::string truncation = "disabled";
  fields.read("truncation", truncation);
  std::vector<std::string> include;
  fields.read_strings("include", include);
  ZIPAGE_RETURN_IF_ERROR(fields.status());
  if (!instructions.empty()) conversation.add_text("system", instructions);
  if (!given(body, "input")) return fault("input", "input is missing");
  const json& input = body["input"];
  if (input.is_string()) {
    conversation.add_text("user", input);
  } else if (input.is_array()) {
    for (const json& item : input) ZIPAGE_RETURN_IF_ERROR(conversation.add(item));
  } else {
    return fault("input", fmt::format("input must be a string or a list of items, not {}", excerpt(input)));
  }
  for (const char* key : {"text", "reasoning", "metadata"}) {
    if (given(body, key) && !body[key].is_object()) {
      return fault(key, fmt::format("{} must be an object, not {}", key, excerpt(body[key])));
    }
  }
  if (truncation != "disabled" && truncation != "auto") {
    return fault("truncation", fmt::format("truncation must be auto or disabled, not '{}'", truncation));
  }

  ResponseChat chat;
  chat.logprobs = std::ranges::find(include, "message.output_text.logprobs") != include.end();
  std::string& out = chat.body;
  out = R"({"messages":)" + conversation.messages().dump(-1, ' ', false, ordered_json::error_handler_t::replace);
  const auto add = [&](std::string_view key, std::string_view value) {
    fmt::format_to(std::back_inserter(out), R"(,"{}":{})", key, value);
  };
  // The other fields mean what they mean in a chat.
  static constexpr std::string_view kOwn[] = {"input",
                                              "instructions",
                                              "max_output_tokens",
                                              "text",
                                              "reasoning",
                                              "truncation",
                                              "include",
                                              "top_logprobs",
                                              "messages",
                                              "n",
                                              "logprobs",
                                              "max_tokens",
                                              "response_format",
                                              "max_completion_tokens",
                                              "stream_options",
                                              "truncate_prompt_tokens",
                                              "store",
                                              "metadata",
                                              "background"};
  for (const auto& [key, value] : body.items()) {
    if (value.is_null() || std::ranges::find(kOwn, std::string_view(key)) != std::end(kOwn)) continue;
    const std::string_view raw = json_member(text, key);
    add(to_json_text(key).substr(1, to_json_text(key).size() - 2), raw.empty() ? to_json_text(value) : raw);
  }
  if (max_output_tokens) add("max_completion_tokens", std::to_string(*max_output_tokens));
  if (truncation == "auto" || given(body, "truncate_prompt_tokens")) add("truncate_prompt_tokens", "-1");
  if (given(body, "text") && body["text"].is_object() && given(body["text"], "format")) {
    const std::string_view raw = json_member(json_member(text, "text"), "format");
    add("response_format", raw.empty() ? to_json_text(body["text"]["format"]) : raw);
  }
  if (given(body, "reasoning") && body["reasoning"].is_object() && given(body["reasoning"], "effort")) {
    add("reasoning_effort", to_json_text(body["reasoning"]["effort"]));
  }
  if (chat.logprobs) {
    add("logprobs", "true");
    if (given(body, "top_logprobs")) add("top_logprobs", to_json_text(body["top_logprobs"]));
  }
  out += '}';
  return chat;
}

}  // namespace zipage
