#include "grammar/grammar_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <span>
#include <string_view>

#include "base/json_nesting.h"

namespace zipage {
namespace {

using nlohmann::json;

constexpr int kMaxDepth = 64;
constexpr size_t kMaxChoices = 10'000;

Result<json> parse(const std::string& text, const char* what) {
  if (json_nesting(text) > kMaxDepth) {
    return invalid_argument(fmt::format("the {} is nested deeper than {} levels", what, kMaxDepth));
  }
  json value = json::parse(text, nullptr, false);
  if (value.is_discarded()) return invalid_argument(fmt::format("the {} is not valid JSON", what));
  return value;
}

// Keywords that XGrammar passes over: an answer would not be kept to them.
constexpr std::string_view kUnsupported[] = {
    "not",         "if",       "then",        "else",       "dependentRequired", "dependentSchemas",
    "uniqueItems", "contains", "minContains", "maxContains"};
// What lies in these is named by whoever wrote the schema.
constexpr std::string_view kHoldSchemas[] = {"properties", "patternProperties", "$defs", "definitions"};
// What lies in these is data.
constexpr std::string_view kHoldData[] = {"const", "enum", "default", "examples"};

bool contains(std::span<const std::string_view> words, std::string_view word) {
  return std::ranges::find(words, word) != words.end();
}

Status check_schema(const json& schema) {
  if (schema.is_array()) {
    for (const json& item : schema) ZIPAGE_RETURN_IF_ERROR(check_schema(item));
    return {};
  }
  if (!schema.is_object()) return {};
  for (const auto& [key, value] : schema.items()) {
    if (contains(kHoldData, key)) continue;
    if (contains(kHoldSchemas, key) && value.is_object()) {
      for (const json& inner : value) ZIPAGE_RETURN_IF_ERROR(check_schema(inner));
      continue;
    }
    if (key == "$ref" && value.is_string() && !value.get_ref<const std::string&>().starts_with('#')) {
      return invalid_argument(fmt::format("the schema refers to {}: only references within it (#/...) are followed",
                                          readable(value.dump(-1, ' ', true, json::error_handler_t::replace))));
    }
    if (contains(kUnsupported, key) && value != false) {
      return invalid_argument(fmt::format("the schema's keyword \"{}\" is not supported", key));
    }
    ZIPAGE_RETURN_IF_ERROR(check_schema(value));
  }
  return {};
}

// Schemas lie anywhere in a structural tag.
Status check_tag(const json& tag) {
  if (!tag.is_structured()) return {};
  if (tag.is_object() && tag.contains("json_schema")) return check_schema(tag["json_schema"]);
  for (const json& inner : tag) ZIPAGE_RETURN_IF_ERROR(check_tag(inner));
  return {};
}

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
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
        if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) {
          out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
        } else {
          out += c;
        }
    }
  }
  return out + '"';
}

}  // namespace

Status check_source(const StructuredOutput& what, size_t most_bytes) {
  using Kind = StructuredOutput::Kind;
  if (what.source.size() > most_bytes) {
    return invalid_argument(
        fmt::format("the grammar's source has {} bytes, more than {}", what.source.size(), most_bytes));
  }
  switch (what.kind) {
    case Kind::kJsonObject:
      return {};
    case Kind::kJsonSchema: {
      ZIPAGE_ASSIGN_OR_RETURN(const json schema, parse(what.source, "schema"));
      if (!schema.is_object() && !schema.is_boolean()) return invalid_argument("the schema is not a JSON object");
      return check_schema(schema);
    }
    case Kind::kStructuralTag: {
      ZIPAGE_ASSIGN_OR_RETURN(const json tag, parse(what.source, "structural tag"));
      if (!tag.is_object()) return invalid_argument("the structural tag is not a JSON object");
      return check_tag(tag);
    }
    case Kind::kRegex:
    case Kind::kGrammar:
      if (what.source.empty()) return invalid_argument("the grammar is empty");
      return {};
    case Kind::kChoice:
      return choice_grammar(what.source).status();
  }
  return {};
}

Result<std::string> choice_grammar(const std::string& choices) {
  ZIPAGE_ASSIGN_OR_RETURN(const json list, parse(choices, "list of choices"));
  if (!list.is_array() || list.empty()) return invalid_argument("choice needs a list of at least one string");
  if (list.size() > kMaxChoices) {
    return invalid_argument(fmt::format("{} choices are more than {}", list.size(), kMaxChoices));
  }
  std::string grammar = "root ::= ";
  for (const json& choice : list) {
    if (!choice.is_string()) return invalid_argument("choice needs a list of strings");
    if (&choice != &list.front()) grammar += " | ";
    grammar += quoted(choice.get_ref<const std::string&>());
  }
  return grammar;
}

std::string readable(std::string message) {
  constexpr size_t kMost = 300;
  while (!message.empty() && (message.back() == '\n' || message.back() == ' ' || message.back() == '.')) {
    message.pop_back();
  }
  std::ranges::replace(message, '\n', ' ');
  if (message.size() > kMost) {
    size_t cut = kMost;
    while (cut > 0 && (static_cast<unsigned char>(message[cut]) & 0xC0) == 0x80) --cut;
    message = message.substr(0, cut) + "…";
  }
  return message;
}

bool drops_a_constraint(const std::string& warning) {
  // The length of a string with a pattern and the uniqueness of oneOf's match are as good as always implied by the
  // schema's other parts, and schema generators write them everywhere.
  return !warning.starts_with("oneOf with overlapping") && warning.find("minLength/maxLength") == std::string::npos &&
         warning.find("length constraints") == std::string::npos;
}

}  // namespace zipage
