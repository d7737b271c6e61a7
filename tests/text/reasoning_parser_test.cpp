#include "text/reasoning_parser.h"

#include <gtest/gtest.h>

namespace zipage {
namespace {

struct Parts {
  std::string reasoning, content;
  bool operator==(const Parts&) const = default;
};
void PrintTo(const Parts& parts, std::ostream* out) {
  *out << "[" << parts.reasoning << "|" << parts.content << "]";
}

Parts parse_thought(const std::vector<std::string>& deltas, PromptThought prompt = PromptThought::kUntouched,
                    ReasoningFormat format = {}) {
  ReasoningParser parser(format, prompt);
  Parts parts;
  const auto add = [&](const ReasoningParser::Delta& delta) {
    parts.reasoning += delta.reasoning;
    parts.content += delta.content;
  };
  for (const std::string& delta : deltas) add(parser.push(delta));
  add(parser.finish());
  return parts;
}

TEST(ReasoningParser, case_31_TagsAcrossDeltas) {
  EXPECT_EQ(parse_thought({"<thi", "nk>a", "b</th", "ink>c"}), (Parts{"ab", "c"}));
  EXPECT_EQ(parse_thought({"preface <th", "ink>x</think>y"}), (Parts{"x", "preface y"}));
  EXPECT_EQ(parse_thought({"</th", "ink>", "y"}, PromptThought::kOpened), (Parts{"", "y"}));
}

TEST(ReasoningParser, case_31_EveryCutOfATextGivesTheSame) {
  const std::string text = "p<<think>a < b </thin </think>c <think>d</think>";
  for (size_t size = 1; size <= text.size(); ++size) {
    std::vector<std::string> deltas;
    for (size_t at = 0; at < text.size(); at += size) deltas.push_back(text.substr(at, size));
    EXPECT_EQ(parse_thought(deltas), (Parts{"a < b </thin ", "p<c <think>d</think>"})) << size;
  }
}

TEST(ReasoningParser, case_31_ALoneAngleBracketIsNotSwallowedNorDelayedForLong) {
  ReasoningParser parser({}, PromptThought::kOpened);
  EXPECT_EQ(parser.push("a <").reasoning, "a ");
  EXPECT_EQ(parser.push(" b").reasoning, "< b");
  EXPECT_EQ(parser.push("<").reasoning, "");
  EXPECT_EQ(parser.finish().reasoning, "<");
}

TEST(ReasoningParser, case_31_ATagAtTheVeryEnd) {
  EXPECT_EQ(parse_thought({"<think>a", "</think>"}), (Parts{"a", ""}));
  EXPECT_EQ(parse_thought({"a</think"}, PromptThought::kOpened), (Parts{"a</think", ""}));
}

TEST(ReasoningParser, case_31_AnUnfinishedThoughtIsReasoning) {
  EXPECT_EQ(parse_thought({"so it goes"}, PromptThought::kOpened), (Parts{"so it goes", ""}));
  EXPECT_EQ(parse_thought({"<think>so it goes"}), (Parts{"so it goes", ""}));
}

TEST(ReasoningParser, ABeginTagThatRepeatsThePromptsIsDropped) {
  EXPECT_EQ(parse_thought({"<th", "ink>a</think>b"}, PromptThought::kOpened), (Parts{"a", "b"}));
  EXPECT_EQ(parse_thought({"<thorn>a</think>b"}, PromptThought::kOpened), (Parts{"<thorn>a", "b"}));
}

TEST(ReasoningParser, APromptThatClosedTheThoughtLeavesContent) {
  EXPECT_EQ(parse_thought({"x <think>y</think>"}, PromptThought::kClosed), (Parts{"", "x <think>y</think>"}));
}

TEST(ReasoningParser, DeepSeekR1BeginsInsideTheThought) {
  ReasoningFormat format;
  format.always_thinks = true;
  EXPECT_EQ(parse_thought({"a</think>b"}, PromptThought::kUntouched, format), (Parts{"a", "b"}));
  EXPECT_EQ(parse_thought({"b"}, PromptThought::kClosed, format), (Parts{"", "b"}));
}

TEST(ReasoningParser, ATagsTokenIsTheTagEvenWhenItsTextIsHidden) {
  ReasoningFormat format;
  format.begin_id = 1;
  format.end_id = 2;
  ReasoningParser parser(format, PromptThought::kUntouched);
  EXPECT_EQ(parser.push_token(1, "").content, "");
  EXPECT_TRUE(parser.thinking());
  EXPECT_EQ(parser.push_token(7, "deep").reasoning, "deep");
  EXPECT_EQ(parser.push_token(2, "</think>").reasoning, "");
  EXPECT_EQ(parser.push_token(8, "answer").content, "answer");
}

TEST(ReasoningParser, PromptsShowHowTheyLeaveTheThought) {
  EXPECT_EQ(prompt_thought("<|im_start|>assistant\n<think>\n"), PromptThought::kOpened);
  EXPECT_EQ(prompt_thought("<|im_start|>assistant\n<think>\n\n</think>\n\n"), PromptThought::kClosed);
  EXPECT_EQ(prompt_thought("<think>x"), PromptThought::kUntouched);
  EXPECT_EQ(prompt_thought(" \n"), PromptThought::kUntouched);
}

TEST(ReasoningFormat, ParsersByName) {
  const auto tokenizer =
      Tokenizer::from_json_file(std::string(ZIPAGE_SOURCE_DIR) + "/models/reasoner/model/tokenizer.json");
  ASSERT_TRUE(tokenizer.ok());
  const auto named = reasoning_format("auto", **tokenizer, "");
  ASSERT_TRUE(named.ok() && named->has_value());
  EXPECT_EQ((*named)->begin_id, 612);
  EXPECT_EQ((*named)->end_id, 613);
  EXPECT_TRUE((*reasoning_format("deepseek_r1", **tokenizer, ""))->always_thinks);
  EXPECT_FALSE((*reasoning_format("qwen3", **tokenizer, ""))->always_thinks);
  EXPECT_FALSE(reasoning_format("", **tokenizer, "")->has_value());
  EXPECT_EQ(reasoning_format("qwen", **tokenizer, "").status().param(), "reasoning-parser");
  const std::vector<int32_t> opened = (*tokenizer)->encode("so <think>\n", false);
  EXPECT_EQ(prompt_thought(**tokenizer, opened), PromptThought::kOpened);
}

}  // namespace
}  // namespace zipage
