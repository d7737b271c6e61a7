#include <gtest/gtest.h>

#include <random>

#include "text/detokenizer.h"

namespace zipage {
namespace {

using Deltas = std::vector<std::string>;

Deltas run(StopChecker& checker, const Deltas& texts) {
  Deltas out;
  for (const std::string& text : texts) out.push_back(checker.push(text));
  out.push_back(checker.finish());
  return out;
}

TEST(StopChecker, case_09_AStopStringAcrossTokensNeverLeaks) {
  StopChecker checker({"DEFGHIJ"}, false);
  EXPECT_EQ(run(checker, {"ABC", "DEF", "G", "HI", "J…"}), (Deltas{"ABC", "", "", "", "", ""}));
  EXPECT_TRUE(checker.matched());
  EXPECT_EQ(checker.stop(), "DEFGHIJ");
}

TEST(StopChecker, case_09_HeldTextIsReleasedWhenTheMatchFails) {
  StopChecker checker({"DEFGHIJ"}, false);
  EXPECT_EQ(run(checker, {"ABC", "DEF", "G", "HI", "K", "D"}), (Deltas{"ABC", "", "", "", "DEFGHIK", "", "D"}));
  EXPECT_FALSE(checker.matched());
}

TEST(StopChecker, case_10_AStopInsideATokenCutsTheText) {
  StopChecker without({"fox"}, false), with({"fox"}, true);
  EXPECT_EQ(run(without, {"quick", " foxes."}), (Deltas{"quick", " ", ""}));
  EXPECT_EQ(run(with, {"quick", " foxes."}), (Deltas{"quick", " fox", ""}));
}

TEST(StopChecker, case_11_OnlyATruePrefixOfAStopIsHeldBack) {
  StopChecker checker({"\n\nHuman:"}, false);
  EXPECT_EQ(run(checker, {"so", "</think>", "\n", "\n", "Answer"}),
            (Deltas{"so", "</think>", "", "", "\n\nAnswer", ""}));
}

TEST(StopChecker, NothingIsHeldBackWithoutStops) {
  StopChecker checker({}, false);
  EXPECT_EQ(run(checker, {"a", "", "b"}), (Deltas{"a", "", "b", ""}));
}

TEST(StopChecker, TheFirstStopToBeCompleteWins) {
  StopChecker checker({"world wide", "wor", "orld"}, false);
  EXPECT_EQ(checker.push("hello world wide"), "hello ");
  EXPECT_EQ(checker.stop(), "wor");
  StopChecker same_end({"b", "ab"}, false);
  EXPECT_EQ(same_end.push("xab"), "x");
  EXPECT_EQ(same_end.stop(), "ab");
}

TEST(StopChecker, ThePiecesInWhichATextComesMakeNoDifference) {
  std::mt19937 random(7);
  for (int round = 0; round < 2000; ++round) {
    std::string text;
    for (int i = 0; i < 24; ++i) text += static_cast<char>('a' + random() % 3);
    Deltas stops;
    for (int i = 0; i < 3; ++i) {
      std::string stop;
      for (size_t size = 1 + random() % 6; stop.size() < size;) stop += static_cast<char>('a' + random() % 3);
      stops.push_back(stop);
    }
    const bool include = random() % 2 == 0;
    StopChecker whole(stops, include), pieces(stops, include);
    std::string expected = whole.push(text);
    expected += whole.finish();
    std::string shown;
    for (size_t at = 0; at < text.size();) {
      const size_t size = 1 + random() % 5;
      shown += pieces.push(std::string_view(text).substr(at, size));
      at += size;
    }
    shown += pieces.finish();
    ASSERT_EQ(shown, expected) << text;
    ASSERT_EQ(pieces.matched(), whole.matched());
    ASSERT_EQ(pieces.stop(), whole.stop());
  }
}

}  // namespace
}  // namespace zipage
