#include "compress/plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace zipage {
namespace {

std::vector<BlockId> ids(std::initializer_list<int> values) {
  std::vector<BlockId> out;
  for (int v : values) out.emplace_back(v);
  return out;
}

std::vector<BlockId> range(int begin, int end) {
  std::vector<BlockId> out;
  for (int v = begin; v < end; ++v) out.emplace_back(v);
  return out;
}

CompressionParams params(int budget, int slack) {
  CompressionParams p;
  p.budget = budget;
  p.slack = slack;
  p.window = 1;
  return p;
}

CompressionParams with_recent(CompressionParams p, int recent) {
  p.recent = recent;
  return p;
}

TEST(Plan, OfAFullUnsharedTableKeepsEveryBlockInPlace) {
  const CompressionPlan plan = plan_compression(ids({7, 3, 9}), 0, {}, 48, params(32, 16), 16);
  EXPECT_EQ(plan.targets, ids({7, 3}));
  EXPECT_EQ(plan.kept_empty, ids({9}));
  EXPECT_TRUE(plan.released.empty());
  EXPECT_EQ(plan.table_after(), ids({7, 3, 9}));
}

TEST(Plan, C2_ReplacesSharedBlocksByFreshOnes) {
  EXPECT_EQ(fresh_blocks_needed(1, 48, params(32, 16), 16), 1);
  const CompressionPlan plan = plan_compression(ids({7, 3, 9}), 1, ids({5}), 48, params(32, 16), 16);
  EXPECT_EQ(plan.targets, ids({5, 3}));
  EXPECT_EQ(plan.kept_empty, ids({9}));
  EXPECT_EQ(plan.released, ids({7}));
}

TEST(Plan, WithMoreSharedBlocksThanTheBudgetNeedsFreshOnesForTheBudgetOnly) {
  EXPECT_EQ(fresh_blocks_needed(3, 60, params(32, 16), 16), 2);
  const CompressionPlan plan = plan_compression(ids({7, 3, 9, 4}), 3, ids({5, 6}), 60, params(32, 16), 16);
  EXPECT_EQ(plan.targets, ids({5, 6}));
  EXPECT_EQ(plan.kept_empty, ids({4}));
  EXPECT_EQ(plan.released, ids({7, 3, 9}));
}

TEST(Plan, OfALongPromptReleasesWhatTheSlackDoesNotNeed) {
  const CompressionPlan plan = plan_compression(range(0, 10), 0, {}, 150, params(32, 32), 16);
  EXPECT_EQ(plan.targets, ids({0, 1}));
  EXPECT_EQ(plan.kept_empty, ids({2, 3}));
  EXPECT_EQ(plan.released, range(4, 10));
  EXPECT_EQ(plan.num_source_blocks, 10);
}

TEST(Plan, AllocatesNothingToMakeUpForMissingSlackBlocks) {
  const CompressionPlan plan = plan_compression(ids({1, 2, 3}), 3, ids({8, 9}), 40, params(32, 64), 16);
  EXPECT_EQ(plan.table_after(), ids({8, 9}));
  EXPECT_EQ(plan.released, ids({1, 2, 3}));
}

TEST(Plan, MovesBlocksOfTheNewestSlotsInTheTableAlone) {
  const CompressionParams p = with_recent(params(64, 32), 40);
  const CompressionPlan plan = plan_compression(ids({7, 3, 9, 4, 6, 8, 5}), 0, {}, 96, p, 16);
  EXPECT_EQ(plan.num_retained, 2);
  EXPECT_EQ(plan.targets, ids({7, 3, 6, 8}));
  EXPECT_EQ(plan.kept_empty, ids({9, 4}));
  EXPECT_EQ(plan.released, ids({5}));
}

TEST(Plan, OfRetainedBlocksNeedsFewerFreshOnes) {
  const CompressionParams p = with_recent(params(48, 16), 32);
  EXPECT_EQ(fresh_blocks_needed(2, 64, p, 16), 1);
  const CompressionPlan plan = plan_compression(ids({7, 3, 9, 4}), 2, ids({1}), 64, p, 16);
  EXPECT_EQ(plan.targets, ids({1, 9, 4}));
  EXPECT_TRUE(plan.kept_empty.empty());
  EXPECT_EQ(plan.released, ids({7, 3}));
}

TEST(Plan, RetainsNoBlockThatIsShared) {
  const CompressionParams p = with_recent(params(48, 16), 48);
  const CompressionPlan plan = plan_compression(ids({7, 3, 9, 4}), 3, ids({1, 2}), 64, p, 16);
  EXPECT_EQ(plan.num_retained, 1);
  EXPECT_EQ(plan.targets, ids({1, 2, 4}));
  EXPECT_EQ(plan.released, ids({7, 3, 9}));
}

TEST(Plan, RetainsNothingBehindABlockThatIsNotFull) {
  const CompressionPlan plan = plan_compression(ids({7, 3, 9, 4}), 0, {}, 63, with_recent(params(48, 16), 48), 16);
  EXPECT_EQ(plan.num_retained, 0);
  EXPECT_EQ(plan.targets, ids({7, 3, 9}));
}

// Every table of up to 9 blocks, every number of shared ones, every budget and slack, none and some of the newest slots
// kept in any case.
TEST(Plan, KeepsItsInvariantsExhaustively) {
  constexpr int b = 4;
  for (int n = 2; n <= 9; ++n) {
    for (int shared = 0; shared <= n; ++shared) {
      for (int k = 1; k < n; ++k) {
        for (int slack = 1; slack <= 3; ++slack) {
          for (int num_slots = k * b + 1; num_slots <= n * b; ++num_slots) {
            const int recent = (n + shared + slack + num_slots) % (k * b + 1);
            const CompressionParams p = with_recent(params(k * b, slack * b), recent);
            const auto table = range(100, 100 + n);
            const auto fresh = range(0, fresh_blocks_needed(shared, num_slots, p, b));
            const CompressionPlan plan = plan_compression(table, shared, fresh, num_slots, p, b);
            // C3: budget / b full blocks, at most slack / b empty ones, and all of them where the sequence owns them.
            ASSERT_EQ(plan.targets.size(), static_cast<size_t>(k));
            const int own_left = n - shared - (k - static_cast<int>(fresh.size()));
            ASSERT_EQ(plan.kept_empty.size(), static_cast<size_t>(std::min(own_left, slack)));
            // Every block is in exactly one place; nothing is lost or used twice.
            std::multiset<BlockId> after(plan.targets.begin(), plan.targets.end());
            after.insert(plan.kept_empty.begin(), plan.kept_empty.end());
            after.insert(plan.released.begin(), plan.released.end());
            std::multiset<BlockId> before(table.begin(), table.end());
            before.insert(fresh.begin(), fresh.end());
            ASSERT_EQ(after, before);
            // Retained slots are all among the newest, and lie as far from the end as before.
            ASSERT_LE(plan.num_retained * b, p.newest_kept());
            const int moved = k - plan.num_retained;
            for (int i = 0; i < k; ++i) {
              const auto at = std::find(table.begin(), table.end(), plan.targets[static_cast<size_t>(i)]);
              if (i >= moved) {
                ASSERT_EQ((at - table.begin() + k - i) * b, num_slots) << "C5";
              } else if (at == table.end()) {
                continue;
              } else {
                ASSERT_LE(at - table.begin(), i) << "C1";
              }
              ASSERT_GE(at - table.begin(), shared) << "C2";
            }
            for (BlockId block : plan.kept_empty) ASSERT_GE(block.value(), 100 + shared) << "C2";
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace zipage
