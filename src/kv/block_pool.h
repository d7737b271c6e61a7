// Ownership of the KV pool's blocks. Knows neither tokens nor requests.
//
//             allocate               release, not indexed
//     free ------------> live(n) -------------------------> free
//                         |  ^ share          release, indexed
//                         |  +----------- cached <---------- live(1)
//                         | quarantine       | evicted (least recently released first), then as free
//                         +-------------> quarantined --end_quarantine--> free or cached
//
// C2 a block that more than one owner holds, or that is indexed, is not writable: writable() says so.
// C7 a block that a running copy still reads or writes is quarantined, not released.
// C8 free + live + cached + quarantined = size, after every call.
//
// Thread-safety: one thread (the engine's).
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "base/ids.h"

namespace zipage {

class BlockPool {
 public:
  explicit BlockPool(int num_blocks);

  int size() const { return static_cast<int>(blocks_.size()); }
  int num_free() const { return static_cast<int>(free_.size()); }
  int num_cached() const { return num_cached_; }
  int num_live() const { return num_live_; }
  int num_quarantined() const { return num_quarantined_; }
  // Blocks that allocate() can hand out: free ones and cached ones nobody uses.
  int num_available() const { return num_free() + num_cached(); }

  // A block with one owner. Takes a free one, else the cached one released longest ago (on_evict is told first).
  // REQUIRES: num_available() > 0
  BlockId allocate();
  // One more owner for a live or cached block.
  void share(BlockId block);
  // One owner less. The last owner's release makes it cached (if indexed) or free.
  void release(BlockId block);
  // The last owner gives the block up while a copy still touches it. REQUIRES: one owner.
  void quarantine(BlockId block);
  void end_quarantine(BlockId block);

  int owners(BlockId block) const { return at(block).owners; }
  bool indexed(BlockId block) const { return at(block).indexed; }
  bool writable(BlockId block) const { return at(block).owners == 1 && !at(block).indexed; }
  // The prefix cache's mark. Clearing it on a cached block frees the block.
  void set_indexed(BlockId block, bool indexed);

  // Called before a cached block is handed out for other content.
  void on_evict(std::function<void(BlockId)> callback) { on_evict_ = std::move(callback); }
  // Frees every cached block.
  void drop_cached();

  // Recounts everything; aborts with the numbers when C8 or a count is wrong.
  void check() const;

 private:
  struct Block {
    int owners = 0;
    bool indexed = false;
    bool quarantined = false;
    int32_t lru_previous = -1, lru_next = -1;  // among cached blocks
    bool cached() const { return owners == 0 && indexed && !quarantined; }
  };
  Block& at(BlockId block);
  const Block& at(BlockId block) const;
  void lru_append(BlockId block);
  void lru_remove(BlockId block);

  std::vector<Block> blocks_;
  std::vector<BlockId> free_;  // a stack: the most recently freed block is the warmest
  int32_t lru_first_ = -1, lru_last_ = -1;
  int num_cached_ = 0, num_live_ = 0, num_quarantined_ = 0;
  std::function<void(BlockId)> on_evict_;
};

}  // namespace zipage
