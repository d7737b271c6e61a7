#include "text/chat_inputs.h"

#include <fmt/format.h>

#include "base/json_nesting.h"

namespace zipage {
namespace {

using nlohmann::ordered_json;

constexpr int kMaxDepth = 64;  // deeper nesting would exhaust the stack of whoever walks through it

Result<ordered_json> parse(const std::string& text, const char* field, bool array) {
  if (json_nesting(text) > kMaxDepth) {
    return invalid_argument(fmt::format("{} is nested deeper than {} levels", field, kMaxDepth)).with_param(field);
  }
  ordered_json value = ordered_json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (value.is_discarded() || (array ? !value.is_array() : !value.is_object())) {
    return invalid_argument(fmt::format("{} is not a JSON {}", field, array ? "array" : "object")).with_param(field);
  }
  return value;
}

Status join_parts(ordered_json& content) {
  std::string joined;
  for (const ordered_json& part : content) {
    const bool is_text = part.is_object() && part.contains("text") && part["text"].is_string();
    if (!is_text && !part.is_string()) {
      return invalid_argument("messages may have text content only").with_param("messages");
    }
    if (!joined.empty()) joined += '\n';
    joined += part.is_string() ? part.get<std::string>() : part["text"].get<std::string>();
  }
  content = joined;
  return {};
}

Status prepare_message(ordered_json& message, bool keep_parts) {
  if (!message.is_object()) return invalid_argument("a message is not an object").with_param("messages");
  if (!message.contains("role") || !message["role"].is_string()) {
    return invalid_argument("a message lacks its role").with_param("messages");
  }
  if (!keep_parts && message.contains("content") && message["content"].is_array()) {
    ZIPAGE_RETURN_IF_ERROR(join_parts(message["content"]));
  }
  if (!message.contains("tool_calls") || !message["tool_calls"].is_array()) return {};
  for (ordered_json& call : message["tool_calls"]) {
    if (!call.is_object() || !call.contains("function") || !call["function"].is_object()) continue;
    ordered_json& function = call["function"];
    if (!function.contains("arguments") || !function["arguments"].is_string()) continue;
    const auto& text = function["arguments"].get_ref<const std::string&>();
    if (json_nesting(text) > kMaxDepth) continue;
    ordered_json arguments = ordered_json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (arguments.is_object()) function["arguments"] = std::move(arguments);
  }
  return {};
}

}  // namespace

bool keeps_content_parts(std::string_view source) {
  for (const std::string_view sign :
       {"content is string", "content'] is string", "content\"] is string", "content is iterable",
        "content'] is iterable", "content is sequence", "content'] is sequence", "in message.content",
        "in message['content']", "in message[\"content\"]", "content is mapping", "content is not string",
        "content'] is not string", "in content %}", "in content -%}"}) {
    if (source.find(sign) != std::string_view::npos) return true;
  }
  return false;
}

Result<ordered_json> chat_variables(const ChatTemplateInputs& inputs, bool keep_parts) {
  ordered_json variables = ordered_json::object();
  ZIPAGE_ASSIGN_OR_RETURN(variables["messages"], parse(inputs.messages, "messages", true));
  if (variables["messages"].empty()) return invalid_argument("messages is empty").with_param("messages");
  for (ordered_json& message : variables["messages"]) {
    ZIPAGE_RETURN_IF_ERROR(prepare_message(message, keep_parts));
  }
  variables["tools"] = nullptr;
  if (!inputs.tools.empty()) {
    ZIPAGE_ASSIGN_OR_RETURN(ordered_json tools, parse(inputs.tools, "tools", true));
    if (!tools.empty()) variables["tools"] = std::move(tools);
  }
  variables["documents"] = nullptr;
  variables["add_generation_prompt"] = inputs.add_generation_prompt && !inputs.continue_final_message;
  if (!inputs.kwargs.empty()) {
    ZIPAGE_ASSIGN_OR_RETURN(const ordered_json kwargs, parse(inputs.kwargs, "chat_template_kwargs", false));
    for (const auto& [key, value] : kwargs.items()) variables[key] = value;
  }
  return variables;
}

Result<std::string> final_message_text(const ordered_json& variables) {
  const ordered_json& message = variables["messages"].back();
  if (message.contains("content")) {
    const ordered_json& content = message["content"];
    if (content.is_string()) return content.get<std::string>();
    if (content.is_array() && !content.empty() && content.back().is_object() && content.back().contains("text") &&
        content.back()["text"].is_string()) {
      return content.back()["text"].get<std::string>();
    }
  }
  return invalid_argument("continue_final_message needs a last message with text content")
      .with_param("continue_final_message");
}

}  // namespace zipage
