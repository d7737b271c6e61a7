// Which full blocks hold which tokens, so that requests with a common beginning share them.
//
// An entry is one full block of tokens after a parent entry (the blocks before it). Lookup compares the token ids
// themselves: a hash only finds candidates, a collision can never serve somebody else's KV. Only clean blocks are
// published: full, computed, and never written by a compression (C6).
//
// Thread-safety: one thread (the engine's).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/ids.h"
#include "kv/block_pool.h"

namespace zipage {

class PrefixCache {
 public:
  // Names the chain of blocks up to and including one; never reused. A root stands for a salt with no block yet.
  using Chain = uint64_t;

  // hash_bits below 64 weaken the hash, for tests of collisions.
  PrefixCache(BlockPool& pool, int block_size, uint64_t seed, int hash_bits = 64);

  // The empty chain of requests with this salt.
  Chain root(std::string_view salt);

  struct Match {
    std::vector<BlockId> blocks;
    Chain chain = 0;  // of the last block, or the root
  };
  // The longest run of cached blocks that begins with `tokens`. Does not take ownership.
  Match match(Chain root, std::span<const int32_t> tokens) const;

  // Offers a block whose KV has been computed. `tokens` are its block_size ids. When an equal block is there already
  // the first one stays and `block` remains private. Returns the chain that ends with these tokens.
  Chain publish(Chain parent, std::span<const int32_t> tokens, BlockId block);

  // The block's content is about to change or it must not be offered any more.
  void forget(BlockId block);
  void clear();  // forgets all

  size_t num_entries() const { return entries_.size(); }

 private:
  struct Entry {
    Chain parent = 0;
    Chain chain = 0;
    BlockId block;
    std::vector<int32_t> tokens;
  };
  uint64_t hash(Chain parent, std::span<const int32_t> tokens) const;
  const Entry* find(Chain parent, std::span<const int32_t> tokens) const;

  BlockPool& pool_;
  int block_size_;
  uint64_t seed_;
  uint64_t hash_mask_;
  Chain next_chain_ = 1;
  std::unordered_multimap<uint64_t, Entry> entries_;
  std::unordered_map<BlockId, uint64_t> hash_of_block_;
  std::unordered_map<std::string, Chain> roots_;
};

}  // namespace zipage
