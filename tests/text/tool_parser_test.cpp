#include "text/tool_parser.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace zipage {
namespace {

struct Call {
  std::string id, name, arguments;
  bool operator==(const Call&) const = default;
};
struct Parsed {
  std::string content;
  std::vector<Call> calls;
  bool operator==(const Parsed&) const = default;
};
std::ostream& operator<<(std::ostream& out, const Parsed& parsed) {
  out << "content [" << parsed.content << "]";
  for (const Call& call : parsed.calls) out << " " << call.name << "(" << call.arguments << ")";
  return out;
}

bool whole_characters(const std::string& text) {
  const nlohmann::json value = text;
  try {
    return !value.dump().empty();
  } catch (const nlohmann::json::exception&) {
    return false;
  }
}

Parsed parse_calls(ToolFormat format, const std::vector<std::string>& pieces) {
  int next = 0;
  const auto parser = make_tool_parser(format, [&] { return "call_" + std::to_string(next++); });
  Parsed parsed;
  const auto take = [&](const ToolParser::Delta& delta) {
    EXPECT_TRUE(whole_characters(delta.content));
    parsed.content += delta.content;
    for (const ToolCallDelta& call : delta.calls) {
      EXPECT_TRUE(whole_characters(call.arguments));
      const auto index = static_cast<size_t>(call.index);
      if (index == parsed.calls.size()) {
        EXPECT_FALSE(call.name.empty());
        parsed.calls.push_back({call.id, call.name, call.arguments});
        continue;
      }
      ASSERT_EQ(index + 1, parsed.calls.size());  // only the newest call grows
      EXPECT_TRUE(call.id.empty() && call.name.empty());
      EXPECT_FALSE(call.arguments.empty());
      parsed.calls.back().arguments += call.arguments;
    }
  };
  for (const std::string& piece : pieces) take(parser->push(piece));
  take(parser->finish());
  return parsed;
}

std::vector<std::string> characters(const std::string& text) {
  std::vector<std::string> result;
  for (const char byte : text) {
    if ((static_cast<unsigned char>(byte) & 0xC0) == 0x80) {
      result.back() += byte;
    } else {
      result.emplace_back(1, byte);
    }
  }
  return result;
}

// The same whole, character by character, and cut in two and in three at every character.
void expect_parsed(ToolFormat format, const std::string& text, const Parsed& expected) {
  EXPECT_EQ(parse_calls(format, {text}), expected) << text;
  const std::vector<std::string> all = characters(text);
  EXPECT_EQ(parse_calls(format, all), expected) << text << " character by character";
  std::string head;
  for (size_t cut = 0; cut < all.size(); ++cut) {
    head += all[cut];
    EXPECT_EQ(parse_calls(format, {head, text.substr(head.size())}), expected) << text << " cut at " << head.size();
    const std::string middle = cut + 1 < all.size() ? all[cut + 1] : "";
    EXPECT_EQ(parse_calls(format, {head, middle, text.substr(head.size() + middle.size())}), expected) << text;
  }
}

constexpr auto kHermes = ToolFormat::kHermes;
constexpr auto kLlama = ToolFormat::kLlama3;

TEST(HermesTools, ACallIsNameAndArgumentsAndNoContent) {
  const std::string call =
      "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Zürich 世界\", \"days\": 3}}\n</tool_call>";
  const Call expected = {"call_0", "get_weather", "{\"city\": \"Zürich 世界\", \"days\": 3}"};
  expect_parsed(kHermes, call, {"", {expected}});
  expect_parsed(kHermes, "\n\n" + call + "\n", {"", {expected}});
  expect_parsed(kHermes, "Let me see.\n" + call, {"Let me see.", {expected}});
}

TEST(HermesTools, SeveralCallsAreNumbered) {
  expect_parsed(kHermes,
                "<tool_call>\n{\"name\":\"a\",\"arguments\":{}}\n</tool_call>\n<tool_call>{\"arguments\": {\"x\": [1, "
                "{\"y\": \"}]\\\"\"}]}, \"name\": \"b\"}</tool_call>",
                {"", {{"call_0", "a", "{}"}, {"call_1", "b", "{\"x\": [1, {\"y\": \"}]\\\"\"}]}"}}});
}

TEST(HermesTools, OtherTextIsContentToTheLastByte) {
  for (const char* text : {"plain", "a < b and <tool_box> and <tool_", "", "  spaces around \n", "<tool_calls>",
                           "<<<tool_call", "日本 <tool", "{\"name\": \"f\"}"}) {
    expect_parsed(kHermes, text, {text, {}});
  }
  expect_parsed(kHermes, "<tool_call>{\"name\":\"a\",\"arguments\":{}}</tool_call>\n and more",
                {"\n and more", {{"call_0", "a", "{}"}}});
}

TEST(HermesTools, BrokenCallsNeitherLeakTagsNorInventCalls) {
  expect_parsed(kHermes, "<tool_call>\nnot json</tool_call> x", {"not json x", {}});
  expect_parsed(kHermes, "<tool_call>{\"nam", {"{\"nam", {}});
  expect_parsed(kHermes, "<tool_call>{}</tool_call>", {"{}", {}});
  expect_parsed(kHermes, "<tool_call>{\"name\": 5}</tool_call>", {"{\"name\": 5}", {}});
  // Cut off at the token limit: what there is of the arguments is shown.
  expect_parsed(kHermes, "<tool_call>{\"name\": \"f\", \"arguments\": {\"x\": \"y",
                {"", {{"call_0", "f", "{\"x\": \"y"}}});
  expect_parsed(kHermes, "<tool_call>{\"name\": \"f\", \"arguments\": {}} nonsense</tool_call>!",
                {" nonsense!", {{"call_0", "f", "{}"}}});
  expect_parsed(kHermes, "<tool_call>{\"name\": \"f\", \"arguments\": {}, oops}</tool_call>!",
                {"!", {{"call_0", "f", "{}"}}});
}

TEST(HermesTools, ArgumentsMayBeMissingOrInQuotes) {
  expect_parsed(kHermes, "<tool_call>{\"name\": \"f\"}</tool_call>", {"", {{"call_0", "f", "{}"}}});
  expect_parsed(kHermes, "<tool_call>{\"name\": \"f\", \"arguments\": \"{\\\"x\\\": 1}\"}</tool_call>",
                {"", {{"call_0", "f", "{\"x\": 1}"}}});
  expect_parsed(kHermes, "<tool_call>{\"name\": \"f\", \"arguments\": null}</tool_call>",
                {"", {{"call_0", "f", "null"}}});
}

TEST(Llama3Tools, AnAnswerThatBeginsAsAnObjectIsACall) {
  const Call expected = {"call_0", "f", "{\"x\": \"é\"}"};
  const std::string call = "{\"name\": \"f\", \"parameters\": {\"x\": \"é\"}}";
  expect_parsed(kLlama, call, {"", {expected}});
  expect_parsed(kLlama, "<|python_tag|>" + call, {"", {expected}});
  expect_parsed(kLlama, "{\"type\": \"function\", \"name\": \"f\", \"arguments\": {\"x\": \"é\"}}", {"", {expected}});
  expect_parsed(kLlama, call + "; {\"name\": \"g\", \"parameters\": {}}", {"", {expected, {"call_1", "g", "{}"}}});
}

TEST(Llama3Tools, OtherTextIsContent) {
  for (const char* text :
       {"plain {\"name\": \"f\"}", "{\"key\": 1}", "{not json", "", "  hi", "[1, 2]", "<|python", "{"}) {
    expect_parsed(kLlama, text, {text, {}});
  }
  expect_parsed(kLlama, "<|python_tag|>print(1)", {"print(1)", {}});
}

TEST(Tools, FormatsAreFoundByNameOrTemplate) {
  EXPECT_EQ(*tool_format("hermes", ""), kHermes);
  EXPECT_EQ(*tool_format("llama3_json", "<tool_call>"), kLlama);
  EXPECT_EQ(*tool_format("auto", "... <tool_call> ..."), kHermes);
  EXPECT_EQ(*tool_format("", "<|start_header_id|> {\"name\": x, \"parameters\": y}"), kLlama);
  EXPECT_EQ(*tool_format("auto", ""), kHermes);
  EXPECT_FALSE(tool_format("pythonic", "").ok());
}

}  // namespace
}  // namespace zipage
