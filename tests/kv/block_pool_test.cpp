#include "kv/block_pool.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

namespace zipage {
namespace {

TEST(BlockPool, HandsOutCachedBlocksOnlyWhenNoneIsFreeAndTheOldestFirst) {
  BlockPool pool(3);
  std::vector<BlockId> evicted;
  pool.on_evict([&](BlockId block) { evicted.push_back(block); });
  const BlockId a = pool.allocate(), b = pool.allocate();
  pool.set_indexed(a, true);
  pool.set_indexed(b, true);
  pool.release(b);
  pool.release(a);
  EXPECT_EQ(pool.num_cached(), 2);
  EXPECT_EQ(pool.num_available(), 3);
  pool.allocate();
  EXPECT_TRUE(evicted.empty());
  EXPECT_EQ(pool.allocate(), b);
  EXPECT_EQ(evicted, std::vector{b});
  EXPECT_FALSE(pool.indexed(b));
  pool.check();
}

TEST(BlockPool, C2_ASharedOrIndexedBlockIsNotWritable) {
  BlockPool pool(2);
  const BlockId block = pool.allocate();
  EXPECT_TRUE(pool.writable(block));
  pool.share(block);
  EXPECT_FALSE(pool.writable(block));
  pool.release(block);
  pool.set_indexed(block, true);
  EXPECT_FALSE(pool.writable(block));
}

TEST(BlockPool, C7_AQuarantinedBlockIsNobodysUntilItsCopyIsDone) {
  BlockPool pool(1);
  const BlockId block = pool.allocate();
  pool.quarantine(block);
  EXPECT_EQ(pool.num_available(), 0);
  EXPECT_EQ(pool.num_quarantined(), 1);
  pool.check();
  pool.end_quarantine(block);
  EXPECT_EQ(pool.allocate(), block);
}

// C8 and the owners of every block, against a plain model, over 10^5 random calls.
TEST(BlockPool, C8_CountsAgreeWithAModelAfterEveryCall) {
  constexpr int kBlocks = 13;
  BlockPool pool(kBlocks);
  std::map<int, int> owners;    // model: live blocks
  std::map<int, bool> indexed;  // model
  pool.on_evict([&](BlockId block) { indexed[block.value()] = false; });
  std::mt19937 random(7);
  const auto pick = [&](const std::map<int, int>& from) {
    return std::next(from.begin(), static_cast<long>(random() % from.size()))->first;
  };
  for (int step = 0; step < 100000; ++step) {
    switch (random() % 5) {
      case 0:
        if (pool.num_available() > 0) {
          const int block = pool.allocate().value();
          ASSERT_FALSE(owners.contains(block));
          ASSERT_FALSE(indexed[block]);
          owners[block] = 1;
        }
        break;
      case 1:
        if (!owners.empty()) {
          const int block = pick(owners);
          pool.share(BlockId(block));
          ++owners[block];
        }
        break;
      case 2:
        if (!owners.empty()) {
          const int block = pick(owners);
          pool.release(BlockId(block));
          if (--owners[block] == 0) owners.erase(block);
        }
        break;
      case 3:
        if (!owners.empty()) {
          const int block = pick(owners);
          indexed[block] = random() % 2 == 0;
          pool.set_indexed(BlockId(block), indexed[block]);
        }
        break;
      default:  // a hit on a cached block
        for (int block = 0; block < kBlocks; ++block) {
          if (!owners.contains(block) && indexed[block]) {
            pool.share(BlockId(block));
            owners[block] = 1;
            break;
          }
        }
    }
    int cached = 0;
    for (int block = 0; block < kBlocks; ++block) {
      ASSERT_EQ(pool.owners(BlockId(block)), owners.contains(block) ? owners[block] : 0);
      ASSERT_EQ(pool.indexed(BlockId(block)), indexed[block]);
      cached += !owners.contains(block) && indexed[block];
    }
    ASSERT_EQ(pool.num_live(), static_cast<int>(owners.size()));
    ASSERT_EQ(pool.num_cached(), cached);
    ASSERT_EQ(pool.num_free() + pool.num_live() + pool.num_cached(), kBlocks);
  }
}

}  // namespace
}  // namespace zipage
