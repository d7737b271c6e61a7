#include "sample/thinking_budget.h"

#include <gtest/gtest.h>

namespace zipage {
namespace {

std::vector<int32_t> run(ThinkingBudget budget, std::vector<int32_t> model) {
  std::vector<int32_t> output;
  for (int32_t token : model) {
    output.push_back(budget.forced().value_or(token));
    budget.accept(output);
  }
  return output;
}

TEST(ThinkingBudget, ForcesTheEndOnceTheBudgetIsUsed) {
  EXPECT_EQ(run(ThinkingBudget(3, {10}, {20, 21}, false), {10, 1, 2, 3, 4, 5, 6}),
            (std::vector<int32_t>{10, 1, 2, 3, 20, 21, 6}));
}

TEST(ThinkingBudget, LeavesAThoughtThatEndsInTimeAlone) {
  EXPECT_EQ(run(ThinkingBudget(5, {10}, {20}, false), {10, 1, 20, 4, 5, 6, 7, 8, 9}),
            (std::vector<int32_t>{10, 1, 20, 4, 5, 6, 7, 8, 9}));
}

TEST(ThinkingBudget, CountsFromTheStartWhenThePromptOpenedTheThought) {
  EXPECT_EQ(run(ThinkingBudget(2, {}, {20}, true), {1, 2, 3, 4}), (std::vector<int32_t>{1, 2, 20, 4}));
}

TEST(ThinkingBudget, ABudgetOfNothingEndsTheThoughtAtOnce) {
  EXPECT_EQ(run(ThinkingBudget(0, {10}, {20}, false), {10, 1, 2}), (std::vector<int32_t>{10, 20, 2}));
}

}  // namespace
}  // namespace zipage
