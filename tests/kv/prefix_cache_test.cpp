#include "kv/prefix_cache.h"

#include <gtest/gtest.h>

#include <numeric>

namespace zipage {
namespace {

std::vector<int32_t> tokens_from(int first, int count) {
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

struct Fixture {
  BlockPool pool{8};
  PrefixCache cache{pool, 4, 1};
  PrefixCache::Chain root = cache.root("");

  // Publishes all full blocks of `tokens` in new blocks; returns them.
  std::vector<BlockId> publish(const std::vector<int32_t>& tokens, PrefixCache::Chain from) {
    std::vector<BlockId> blocks;
    for (size_t i = 0; i + 4 <= tokens.size(); i += 4) {
      blocks.push_back(pool.allocate());
      from = cache.publish(from, std::span(tokens).subspan(i, 4), blocks.back());
    }
    return blocks;
  }
};

TEST(PrefixCache, FindsTheLongestRunOfWholeBlocks) {
  Fixture f;
  const auto blocks = f.publish(tokens_from(0, 12), f.root);
  EXPECT_EQ(f.cache.match(f.root, tokens_from(0, 11)).blocks, (std::vector{blocks[0], blocks[1]}));
  EXPECT_EQ(f.cache.match(f.root, tokens_from(0, 99)).blocks, blocks);
  EXPECT_TRUE(f.cache.match(f.root, tokens_from(1, 12)).blocks.empty());
}

TEST(PrefixCache, TheSameBlockAfterAnotherBeginningIsAnotherBlock) {
  Fixture f;
  f.publish(tokens_from(0, 8), f.root);
  std::vector<int32_t> other = tokens_from(100, 4);
  const auto tail = tokens_from(4, 4);
  other.insert(other.end(), tail.begin(), tail.end());
  EXPECT_TRUE(f.cache.match(f.root, other).blocks.empty());
}

TEST(PrefixCache, SaltsShareNothing) {
  Fixture f;
  f.publish(tokens_from(0, 8), f.root);
  EXPECT_TRUE(f.cache.match(f.cache.root("tenant"), tokens_from(0, 8)).blocks.empty());
  EXPECT_EQ(f.cache.match(f.cache.root(""), tokens_from(0, 8)).blocks.size(), 2U);
}

TEST(PrefixCache, case_34_AReusedBlockIsAMiss) {
  Fixture f;
  const auto blocks = f.publish(tokens_from(0, 4), f.root);
  f.pool.release(blocks[0]);
  for (int i = 0; i < 8; ++i) f.pool.allocate();
  EXPECT_TRUE(f.cache.match(f.root, tokens_from(0, 4)).blocks.empty());
  EXPECT_EQ(f.cache.num_entries(), 0U);
}

TEST(PrefixCache, case_36_EqualPromptsOfOneStepKeepTheFirst) {
  Fixture f;
  const auto first = f.publish(tokens_from(0, 8), f.root);
  const auto second = f.publish(tokens_from(0, 8), f.root);
  EXPECT_EQ(f.cache.match(f.root, tokens_from(0, 8)).blocks, first);
  for (BlockId block : second) {
    EXPECT_FALSE(f.pool.indexed(block));
    f.pool.release(block);
  }
  EXPECT_EQ(f.cache.match(f.root, tokens_from(0, 8)).blocks, first);
  for (BlockId block : first) f.pool.release(block);
  EXPECT_EQ(f.cache.match(f.root, tokens_from(0, 8)).blocks, first);
  f.pool.check();
}

TEST(PrefixCache, case_37_ACollisionOfHashesNeverServesOtherTokens) {
  BlockPool pool(64);
  PrefixCache cache(pool, 4, 1, /*hash_bits=*/1);
  const auto root = cache.root("");
  std::vector<BlockId> blocks;
  for (int i = 0; i < 50; ++i) {
    blocks.push_back(pool.allocate());
    cache.publish(root, tokens_from(i * 10, 4), blocks.back());
  }
  for (int i = 0; i < 50; ++i) {
    EXPECT_EQ(cache.match(root, tokens_from(i * 10, 4)).blocks, std::vector{blocks[static_cast<size_t>(i)]});
    EXPECT_TRUE(cache.match(root, tokens_from(i * 10 + 1, 4)).blocks.empty());
  }
}

TEST(PrefixCache, ForgettingAParentHidesItsChildren) {
  Fixture f;
  const auto blocks = f.publish(tokens_from(0, 8), f.root);
  f.cache.forget(blocks[0]);
  EXPECT_TRUE(f.cache.match(f.root, tokens_from(0, 8)).blocks.empty());
  // The same prefix computed again is a new chain: the orphan does not come back.
  const auto again = f.publish(tokens_from(0, 4), f.root);
  EXPECT_EQ(f.cache.match(f.root, tokens_from(0, 8)).blocks, again);
}

}  // namespace
}  // namespace zipage
