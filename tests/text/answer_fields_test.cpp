#include "text/answer_fields.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "text/json_text.h"

namespace zipage {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using Kind = StructuredOutput::Kind;

Result<AnswerFields> read_fields(const std::string& text) {
  return read_answer_fields(json::parse(text), text);
}

TEST(AnswerFields, EachWayToAskForAFormat) {
  const std::vector<std::pair<std::string, StructuredOutput>> cases = {
      {R"({"response_format": {"type": "json_object"}})", {Kind::kJsonObject, ""}},
      {R"({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"z": 1, "a": 2}}}})",
       {Kind::kJsonSchema, R"({"z": 1, "a": 2})"}},
      {R"({"response_format": {"type": "structural_tag", "format": {"type": "any_text"}}})",
       {Kind::kStructuralTag, R"({"type": "structural_tag", "format": {"type": "any_text"}})"}},
      {R"({"structured_outputs": {"json": {"z": 1, "a": 2}}})", {Kind::kJsonSchema, R"({"z": 1, "a": 2})"}},
      {R"({"structured_outputs": {"json": "{\"b\": 1}"}})", {Kind::kJsonSchema, R"({"b": 1})"}},
      {R"({"structured_outputs": {"json_object": true, "disable_any_whitespace": true}})",
       {Kind::kJsonObject, "", false}},
      {R"({"structured_outputs": {"regex": "a\\d", "choice": null}})", {Kind::kRegex, "a\\d"}},
      {R"({"structured_outputs": {"choice": ["x", "y"]}})", {Kind::kChoice, R"(["x", "y"])"}},
      {R"({"structured_outputs": {"grammar": "root ::= \"x\""}})", {Kind::kGrammar, "root ::= \"x\""}},
  };
  for (const auto& [text, expected] : cases) {
    const auto fields = read_fields(text);
    ASSERT_TRUE(fields.ok()) << text << fields.status().message();
    EXPECT_EQ(fields->structured_output, expected) << text;
  }
  for (const char* text : {"{}", R"({"response_format": {"type": "text"}})", R"({"response_format": null})"}) {
    EXPECT_FALSE(read_fields(text)->structured_output.has_value());
  }
}

TEST(AnswerFields, FaultsNameTheField) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {R"({"response_format": "json"})", "response_format"},
      {R"({"response_format": {"type": "yaml"}})", "response_format"},
      {R"({"response_format": {"type": "json_schema"}})", "response_format"},
      {R"({"structured_outputs": {}})", "structured_outputs"},
      {R"({"structured_outputs": {"regex": "a", "choice": ["b"]}})", "structured_outputs"},
      {R"({"structured_outputs": {"regex": 5}})", "structured_outputs"},
      {R"({"structured_outputs": {"json_object": "yes"}})", "structured_outputs"},
      {R"({"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}})", "structured_outputs"},
      {R"({"tools": {}})", "tools"},
      {R"({"tools": [1]})", "tools"},
      {R"({"tools": [{"type": "retrieval"}]})", "tools"},
      {R"({"tools": [{"type": "function", "function": {}}]})", "tools"},
      {R"({"tools": [{"type": "function", "function": {"name": "f", "parameters": 1}}]})", "tools"},
      {R"({"tool_choice": "required"})", "tool_choice"},
      {R"({"tool_choice": "maybe", "tools": [{"type": "function", "function": {"name": "f"}}]})", "tool_choice"},
      {R"({"tool_choice": {"type": "function", "function": {"name": "g"}}, "tools": [{"type": "function", "function": {"name": "f"}}]})",
       "tool_choice"},
      {R"({"parallel_tool_calls": 1})", "parallel_tool_calls"},
  };
  for (const auto& [text, param] : cases) {
    const auto fields = read_fields(text);
    ASSERT_FALSE(fields.ok()) << text;
    EXPECT_EQ(fields.status().param(), param) << text;
  }
}

TEST(AnswerFields, ToolsKeepTheirTextAndTheChoiceNarrowsThem) {
  const std::string tools =
      R"([{"type": "function", "function": {"name": "f", "parameters": {"z": 1, "a": {"type": "string"}}, "strict": true}}, {"type":"function","function":{"name":"g"}}])";
  const auto automatic = read_fields("{\"tools\": " + tools + "}");
  ASSERT_TRUE(automatic.ok());
  EXPECT_EQ(automatic->tools, tools);
  EXPECT_EQ(automatic->tool_use.choice, ToolUse::Choice::kAuto);
  ASSERT_EQ(automatic->tool_use.tools.size(), 2U);
  EXPECT_EQ(automatic->tool_use.tools[0].parameters, R"({"z": 1, "a": {"type": "string"}})");
  EXPECT_TRUE(automatic->tool_use.tools[0].strict);
  EXPECT_EQ(read_fields("{\"tool_choice\": \"none\", \"tools\": " + tools + "}")->tool_use.choice,
            ToolUse::Choice::kNone);
  EXPECT_EQ(read_fields("{\"tool_choice\": \"required\", \"tools\": " + tools + "}")->tool_use.choice,
            ToolUse::Choice::kRequired);
  const auto named =
      read_fields(R"({"tool_choice": {"type": "function", "function": {"name": "g"}}, "tools": )" + tools + "}");
  EXPECT_EQ(named->tool_use.choice, ToolUse::Choice::kNamed);
  ASSERT_EQ(named->tool_use.tools.size(), 1U);
  EXPECT_EQ(named->tool_use.tools[0].name, "g");
  EXPECT_EQ(read_fields("{\"tools\": []}")->tool_use.choice, ToolUse::Choice::kNone);
}

TEST(JsonText, MembersAndItemsAreTheTextAsWritten) {
  const std::string text = R"( {"a" : [1, {"a": 2}] , "b":"x,}\"]", "c" :null , "a": {"z":1, "y":"}"} } )";
  EXPECT_EQ(json_member(text, "a"), R"({"z":1, "y":"}"})");
  EXPECT_EQ(json_member(text, "b"), R"("x,}\"]")");
  EXPECT_EQ(json_member(text, "c"), "null");
  EXPECT_EQ(json_member(text, "d"), "");
  EXPECT_EQ(json_member("[1]", "a"), "");
  EXPECT_EQ(json_member("{}", "a"), "");
  EXPECT_THAT(json_items(R"([1 , "a,]", {"x": [2]},[ ]])"),
              testing::ElementsAre("1", R"("a,]")", R"({"x": [2]})", "[ ]"));
  EXPECT_TRUE(json_items("[ ]").empty());
  EXPECT_TRUE(json_items("").empty());
}

}  // namespace
}  // namespace zipage
