#include "base/nearest.h"

#include <gtest/gtest.h>

#include <array>

namespace zipage {
namespace {

constexpr std::array<std::string_view, 3> kWords = {"kv-budget", "kv-slack", "block-size"};

TEST(NearestWord, FindsTranspositionsAndLostLetters) {
  EXPECT_EQ(nearest_word("kv-bugdet", kWords), "kv-budget");
  EXPECT_EQ(nearest_word("kvslack", kWords), "kv-slack");
}

TEST(NearestWord, SaysNothingWhenNothingIsNear) {
  EXPECT_EQ(nearest_word("temperature", kWords), "");
}

}  // namespace
}  // namespace zipage
