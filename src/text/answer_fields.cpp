#include "text/answer_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "text/json_fields.h"
#include "text/json_text.h"

namespace zipage {
namespace {

using nlohmann::json;
using Kind = StructuredOutput::Kind;

constexpr size_t kMaxTools = 1024;
constexpr size_t kMaxNameLength = 256;

Status fault(const char* field, std::string message) {
  return invalid_argument(std::move(message)).with_param(field);
}

// A JSON value beside the text that it was parsed from.
struct Node {
  const json& value;
  std::string_view text;  // "" when it is not known

  bool has(const char* key) const { return value.is_object() && value.contains(key) && !value[key].is_null(); }
  Node operator[](const char* key) const { return {value[key], json_member(text, key)}; }
  std::string source() const { return text.empty() ? to_json_text(value) : std::string(text); }
};

Status read_response_format(const Node& format, std::optional<StructuredOutput>& output) {
  constexpr const char* kField = "response_format";
  if (!format.value.is_object() || !format.has("type") || !format.value["type"].is_string()) {
    return fault(kField, fmt::format("response_format must be an object with a type, not {}", excerpt(format.value)));
  }
  const std::string type = format.value["type"];
  if (type == "text") return {};
  if (type == "json_object") {
    output = {Kind::kJsonObject, ""};
    return {};
  }
  if (type == "json_schema") {
    // A Responses request has the schema beside the type.
    const Node holder = format.has("json_schema") ? format["json_schema"] : format;
    if (!holder.has("schema")) return fault(kField, "response_format: json_schema.schema is missing");
    output = {Kind::kJsonSchema, holder["schema"].source()};
    return {};
  }
  if (type == "structural_tag") {
    output = {Kind::kStructuralTag, format.source()};
    return {};
  }
  return fault(kField, fmt::format("response_format: type must be text, json_object, json_schema or structural_tag, "
                                   "not {}",
                                   excerpt(format.value["type"])));
}

// A string holds the source itself; anything else is it.
std::string source_of(const Node& node) {
  return node.value.is_string() ? node.value.get<std::string>() : node.source();
}

Status read_structured_outputs(const Node& outputs, std::optional<StructuredOutput>& output) {
  constexpr const char* kField = "structured_outputs";
  if (!outputs.value.is_object()) {
    return fault(kField, fmt::format("structured_outputs must be an object, not {}", excerpt(outputs.value)));
  }
  struct Form {
    const char* key;
    Kind kind;
    bool text_only;
  };
  static constexpr Form kForms[] = {{"json", Kind::kJsonSchema, false},
                                    {"regex", Kind::kRegex, true},
                                    {"choice", Kind::kChoice, false},
                                    {"grammar", Kind::kGrammar, true},
                                    {"structural_tag", Kind::kStructuralTag, false}};
  int count = 0;
  for (const Form& form : kForms) {
    if (!outputs.has(form.key)) continue;
    ++count;
    const Node node = outputs[form.key];
    if (form.text_only && !node.value.is_string()) {
      return fault(kField,
                   fmt::format("structured_outputs: {} must be a string, not {}", form.key, excerpt(node.value)));
    }
    output = {form.kind, source_of(node)};
  }
  JsonFields fields(outputs.value);
  bool json_object = false, compact = false;
  fields.read("json_object", json_object);
  fields.read("disable_any_whitespace", compact);
  if (!fields.ok()) return fault(kField, "structured_outputs: " + fields.status().message());
  if (json_object) {
    ++count;
    output = {Kind::kJsonObject, ""};
  }
  if (count != 1) {
    return fault(kField,
                 fmt::format("structured_outputs needs exactly one of json, regex, choice, grammar, json_object "
                             "and structural_tag, not {}",
                             count));
  }
  output->any_whitespace = !compact;
  return {};
}

Result<Tool> read_tool(const Node& item) {
  constexpr const char* kField = "tools";
  const auto wrong = [&](std::string_view what) {
    return fault(kField, fmt::format("tools: {}, in {}", what, excerpt(item.value)));
  };
  if (!item.value.is_object() || item.value.value("type", json("function")) != "function") {
    return wrong("each must be an object of the type function");
  }
  // A Responses request has the function's fields beside the type.
  const bool nested = item.has("function");
  if (nested && !item.value["function"].is_object()) return wrong("function must be an object");
  const Node function = nested ? item["function"] : item;
  if (!function.has("name") || !function.value["name"].is_string()) return wrong("a function needs a name");
  Tool tool;
  tool.name = function.value["name"];
  if (tool.name.empty() || tool.name.size() > kMaxNameLength) return wrong("a name has 1 to 256 bytes");
  if (function.has("parameters")) {
    if (!function.value["parameters"].is_object()) return wrong("parameters must be a JSON schema");
    tool.parameters = function["parameters"].source();
  }
  if (function.has("strict")) {
    if (!function.value["strict"].is_boolean()) return wrong("strict must be true or false");
    tool.strict = function.value["strict"];
  }
  return tool;
}

Status read_tools(const Node& list, AnswerFields& fields) {
  if (!list.value.is_array()) return fault("tools", fmt::format("tools must be a list, not {}", excerpt(list.value)));
  if (list.value.size() > kMaxTools) {
    return fault("tools", fmt::format("{} tools are more than {}", list.value.size(), kMaxTools));
  }
  const std::vector<std::string_view> texts = json_items(list.text);
  for (size_t i = 0; i < list.value.size(); ++i) {
    const std::string_view text = texts.size() == list.value.size() ? texts[i] : std::string_view();
    ZIPAGE_ASSIGN_OR_RETURN(Tool tool, read_tool({list.value[i], text}));
    fields.tool_use.tools.push_back(std::move(tool));
  }
  if (!list.value.empty()) fields.tools = list.source();
  return {};
}

Status read_tool_choice(const json& body, ToolUse& use) {
  constexpr const char* kField = "tool_choice";
  const auto value = body.find(kField);
  use.choice = use.tools.empty() ? ToolUse::Choice::kNone : ToolUse::Choice::kAuto;
  if (value == body.end() || value->is_null()) return {};
  if (*value == "none") {
    use.choice = ToolUse::Choice::kNone;
    return {};
  }
  if (*value == "auto") return {};
  const bool required = *value == "required";
  // {"type": "function", "function": {"name"}}, or the name beside the type as in a Responses request.
  const json* holder = value->is_object() && value->contains("function") ? &(*value)["function"] : &*value;
  const bool named = holder->is_object() && holder->contains("name") && (*holder)["name"].is_string();
  if (!required && !named) {
    return fault(kField,
                 fmt::format("tool_choice must be none, auto, required or {{\"type\": \"function\", \"function\": "
                             "{{\"name\": ...}}}}, not {}",
                             excerpt(*value)));
  }
  if (use.tools.empty()) return fault(kField, "tool_choice asks for a call, and there are no tools");
  if (required) {
    use.choice = ToolUse::Choice::kRequired;
    return {};
  }
  const std::string& wanted = (*holder)["name"].get_ref<const std::string&>();
  const auto found = std::ranges::find(use.tools, wanted, &Tool::name);
  if (found == use.tools.end())
    return fault(kField, fmt::format("tool_choice: no tool has the name {}", excerpt((*holder)["name"])));
  Tool only = std::move(*found);
  use.tools.clear();
  use.tools.push_back(std::move(only));
  use.choice = ToolUse::Choice::kNamed;
  use.several = false;
  return {};
}

}  // namespace

Result<AnswerFields> read_answer_fields(const json& body, std::string_view text) {
  AnswerFields fields;
  const Node root{body, text};
  if (root.has("response_format")) {
    ZIPAGE_RETURN_IF_ERROR(read_response_format(root["response_format"], fields.structured_output));
  }
  if (root.has("structured_outputs")) {
    if (fields.structured_output) {
      return fault("structured_outputs", "a request has one of response_format and structured_outputs, not both");
    }
    ZIPAGE_RETURN_IF_ERROR(read_structured_outputs(root["structured_outputs"], fields.structured_output));
  }
  fields.structured_field = root.has("structured_outputs") ? "structured_outputs" : "response_format";
  if (root.has("tools")) ZIPAGE_RETURN_IF_ERROR(read_tools(root["tools"], fields));
  JsonFields flags(body);
  flags.read("parallel_tool_calls", fields.tool_use.several);
  ZIPAGE_RETURN_IF_ERROR(flags.status());
  ZIPAGE_RETURN_IF_ERROR(read_tool_choice(body, fields.tool_use));
  const ToolUse::Choice choice = fields.tool_use.choice;
  if (fields.structured_output && (choice == ToolUse::Choice::kRequired || choice == ToolUse::Choice::kNamed)) {
    return fault("tool_choice", "an answer that must be a tool call cannot have a format of its own");
  }
  return fields;
}

void describe_answer_fields(JsonFields& fields) {
  fields.describe("response_format",
                  R"({"type":["object","null"],"required":["type"],"properties":{"type":{"enum":["text","json_object",)"
                  R"("json_schema","structural_tag"]},"json_schema":{"type":"object"}}})");
  fields.describe("structured_outputs",
                  R"({"type":["object","null"],"properties":{"json":{"type":["object","string","null"]},)"
                  R"("regex":{"type":["string","null"]},"choice":{"type":["array","null"],"items":{"type":"string"}},)"
                  R"("grammar":{"type":["string","null"]},"json_object":{"type":["boolean","null"]},)"
                  R"("structural_tag":{"type":["object","string","null"]},)"
                  R"("disable_any_whitespace":{"type":["boolean","null"]}}})");
  fields.describe("tools",
                  R"({"type":["array","null"],"items":{"type":"object","required":["function"],"properties":{"type":)"
                  R"({"const":"function"},"function":{"type":"object","required":["name"],"properties":{"name":)"
                  R"({"type":"string","minLength":1,"maxLength":256},"description":{"type":["string","null"]},)"
                  R"("parameters":{"type":["object","null"]},"strict":{"type":["boolean","null"]}}}}}})");
  fields.describe("tool_choice",
                  R"({"anyOf":[{"enum":["none","auto","required",null]},{"type":"object","required":["function"],)"
                  R"("properties":{"type":{"const":"function"},"function":{"type":"object","required":["name"],)"
                  R"("properties":{"name":{"type":"string"}}}}}]})");
  fields.describe("parallel_tool_calls", R"({"type":["boolean","null"]})");
}

}  // namespace zipage
