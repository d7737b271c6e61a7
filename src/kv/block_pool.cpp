#include "kv/block_pool.h"

#include "base/check.h"

namespace zipage {

BlockPool::BlockPool(int num_blocks) : blocks_(static_cast<size_t>(num_blocks)) {
  ZIPAGE_CHECK(num_blocks > 0, "a pool of {} blocks", num_blocks);
  free_.reserve(blocks_.size());
  for (int i = num_blocks - 1; i >= 0; --i) free_.emplace_back(i);
}

BlockPool::Block& BlockPool::at(BlockId block) {
  return const_cast<Block&>(static_cast<const BlockPool*>(this)->at(block));
}

const BlockPool::Block& BlockPool::at(BlockId block) const {
  ZIPAGE_CHECK(block.value() >= 0 && block.value() < size(), "block {} of a pool of {}", block.value(), size());
  return blocks_[static_cast<size_t>(block.value())];
}

void BlockPool::lru_append(BlockId block) {
  Block& entry = at(block);
  entry.lru_previous = lru_last_;
  entry.lru_next = -1;
  if (lru_last_ >= 0) blocks_[static_cast<size_t>(lru_last_)].lru_next = block.value();
  if (lru_first_ < 0) lru_first_ = block.value();
  lru_last_ = block.value();
  ++num_cached_;
}

void BlockPool::lru_remove(BlockId block) {
  Block& entry = at(block);
  (entry.lru_previous >= 0 ? blocks_[static_cast<size_t>(entry.lru_previous)].lru_next : lru_first_) = entry.lru_next;
  (entry.lru_next >= 0 ? blocks_[static_cast<size_t>(entry.lru_next)].lru_previous : lru_last_) = entry.lru_previous;
  entry.lru_previous = entry.lru_next = -1;
  --num_cached_;
}

BlockId BlockPool::allocate() {
  ZIPAGE_CHECK(num_available() > 0, "no block to allocate: {} live, {} quarantined of {}", num_live_, num_quarantined_,
               size());
  BlockId block;
  if (!free_.empty()) {
    block = free_.back();
    free_.pop_back();
  } else {
    block = BlockId(lru_first_);
    if (on_evict_) on_evict_(block);
    if (at(block).indexed) set_indexed(block, false);
    ZIPAGE_CHECK(!free_.empty() && free_.back() == block, "evicted block {} did not become free", block.value());
    free_.pop_back();
  }
  at(block).owners = 1;
  ++num_live_;
  return block;
}

void BlockPool::share(BlockId block) {
  Block& entry = at(block);
  ZIPAGE_CHECK(!entry.quarantined && (entry.owners > 0 || entry.indexed), "sharing block {}, which nobody holds",
               block.value());
  if (entry.owners == 0) {
    lru_remove(block);
    ++num_live_;
  }
  ++entry.owners;
}

void BlockPool::release(BlockId block) {
  Block& entry = at(block);
  ZIPAGE_CHECK(entry.owners > 0, "released block {} has no owner", block.value());
  if (--entry.owners > 0) return;
  --num_live_;
  if (entry.indexed) {
    lru_append(block);
  } else {
    free_.push_back(block);
  }
}

void BlockPool::quarantine(BlockId block) {
  Block& entry = at(block);
  ZIPAGE_CHECK(entry.owners == 1 && !entry.quarantined, "quarantining block {} with {} owners", block.value(),
               entry.owners);
  entry.owners = 0;
  entry.quarantined = true;
  --num_live_;
  ++num_quarantined_;
}

void BlockPool::end_quarantine(BlockId block) {
  Block& entry = at(block);
  ZIPAGE_CHECK(entry.quarantined, "block {} is not in quarantine", block.value());
  entry.quarantined = false;
  --num_quarantined_;
  if (entry.indexed) {
    lru_append(block);
  } else {
    free_.push_back(block);
  }
}

void BlockPool::set_indexed(BlockId block, bool indexed) {
  Block& entry = at(block);
  if (entry.indexed == indexed) return;
  if (entry.cached()) {
    lru_remove(block);
    entry.indexed = false;
    free_.push_back(block);
    return;
  }
  ZIPAGE_CHECK(!indexed || entry.owners > 0, "indexing block {}, which nobody holds", block.value());
  entry.indexed = indexed;
}

void BlockPool::drop_cached() {
  while (lru_first_ >= 0) {
    const BlockId block(lru_first_);
    if (on_evict_) on_evict_(block);
    if (at(block).indexed) set_indexed(block, false);
  }
}

void BlockPool::check() const {
  int live = 0, cached = 0, quarantined = 0;
  for (const Block& block : blocks_) {
    ZIPAGE_CHECK(block.owners >= 0, "a block has {} owners", block.owners);
    live += block.owners > 0;
    quarantined += block.quarantined;
    cached += block.cached();
  }
  ZIPAGE_CHECK(live == num_live_ && cached == num_cached_ && quarantined == num_quarantined_ &&
                   num_free() + live + cached + quarantined == size(),
               "C8: {} free + {} live + {} cached + {} quarantined of {} (counted {} live, {} cached, {} quarantined)",
               num_free(), num_live_, num_cached_, num_quarantined_, size(), live, cached, quarantined);
}

}  // namespace zipage
