#include "text/thinking.h"

#include <gtest/gtest.h>

#include <vector>

namespace zipage {
namespace {

ThinkingSplitter::Piece feed(const std::vector<std::string>& deltas, bool starts_inside = false) {
  ThinkingSplitter splitter(starts_inside);
  ThinkingSplitter::Piece all;
  const auto add = [&all](const ThinkingSplitter::Piece& piece) {
    all.reasoning += piece.reasoning;
    all.content += piece.content;
  };
  for (const std::string& delta : deltas) add(splitter.push(delta));
  add(splitter.finish());
  return all;
}

TEST(ThinkingSplitter, case_31_TagsSplitAcrossPiecesNeverLeak) {
  const std::string text = "preface <think>a < b </thin k</think>y <t";
  for (size_t i = 0; i <= text.size(); ++i) {
    for (size_t j = i; j <= text.size(); ++j) {
      const auto piece = feed({text.substr(0, i), text.substr(i, j - i), text.substr(j)});
      EXPECT_EQ(piece.reasoning, "a < b </thin k");
      EXPECT_EQ(piece.content, "preface y <t");
    }
  }
}

TEST(ThinkingSplitter, case_31_ALoneAngleBracketIsNotSwallowed) {
  EXPECT_EQ(feed({"<"}).content, "<");
  EXPECT_EQ(feed({"<", "thin"}).content, "<thin");
  EXPECT_EQ(feed({"a <", " b"}).content, "a < b");
}

TEST(ThinkingSplitter, case_31_ATagAtTheVeryEnd) {
  const auto piece = feed({"<think>x</think>"});
  EXPECT_EQ(piece.reasoning, "x");
  EXPECT_EQ(piece.content, "");
}

TEST(ThinkingSplitter, case_31_ThePromptMayHaveOpenedTheThought) {
  const auto piece = feed({"x</thi", "nk>y"}, true);
  EXPECT_EQ(piece.reasoning, "x");
  EXPECT_EQ(piece.content, "y");
}

TEST(ThinkingSplitter, case_31_AnUnfinishedThoughtIsAllReasoning) {
  const auto piece = feed({"<think>on and on </th"});
  EXPECT_EQ(piece.reasoning, "on and on </th");
  EXPECT_EQ(piece.content, "");
}

TEST(ThinkingSplitter, AfterAThoughtTagsAreText) {
  EXPECT_EQ(feed({"<think>a</think>b<think>c"}).content, "b<think>c");
}

TEST(ThinkingSplitter, PlainTextComesAtOnce) {
  ThinkingSplitter splitter;
  EXPECT_EQ(splitter.push("hello").content, "hello");
}

}  // namespace
}  // namespace zipage
