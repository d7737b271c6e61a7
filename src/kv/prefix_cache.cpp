#include "kv/prefix_cache.h"

#include <algorithm>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/check.h"

namespace zipage {

PrefixCache::PrefixCache(BlockPool& pool, int block_size, uint64_t seed, int hash_bits)
    : pool_(pool),
      block_size_(block_size),
      seed_(seed),
      hash_mask_(hash_bits >= 64 ? ~uint64_t{0} : (uint64_t{1} << hash_bits) - 1) {
  pool_.on_evict([this](BlockId block) { forget(block); });
}

PrefixCache::Chain PrefixCache::root(std::string_view salt) {
  // Salts come from clients: bound what is remembered of them. A forgotten salt only loses its cached blocks.
  constexpr size_t kMaxRoots = 4096;
  const auto found = roots_.find(std::string(salt));
  if (found != roots_.end()) return found->second;
  if (roots_.size() >= kMaxRoots) roots_.clear();
  return roots_[std::string(salt)] = next_chain_++;
}

uint64_t PrefixCache::hash(Chain parent, std::span<const int32_t> tokens) const {
  return XXH3_64bits_withSeed(tokens.data(), tokens.size_bytes(), seed_ ^ (parent * 0x9E3779B97F4A7C15ULL)) &
         hash_mask_;
}

const PrefixCache::Entry* PrefixCache::find(Chain parent, std::span<const int32_t> tokens) const {
  const auto [begin, end] = entries_.equal_range(hash(parent, tokens));
  for (auto it = begin; it != end; ++it) {
    if (it->second.parent == parent && std::ranges::equal(it->second.tokens, tokens)) return &it->second;
  }
  return nullptr;
}

PrefixCache::Match PrefixCache::match(Chain root, std::span<const int32_t> tokens) const {
  Match match{.blocks = {}, .chain = root};
  const size_t block = static_cast<size_t>(block_size_);
  for (size_t begin = 0; begin + block <= tokens.size(); begin += block) {
    const Entry* entry = find(match.chain, tokens.subspan(begin, block));
    if (entry == nullptr) break;
    match.blocks.push_back(entry->block);
    match.chain = entry->chain;
  }
  return match;
}

PrefixCache::Chain PrefixCache::publish(Chain parent, std::span<const int32_t> tokens, BlockId block) {
  ZIPAGE_CHECK(static_cast<int>(tokens.size()) == block_size_, "publishing a block of {} tokens, not {}", tokens.size(),
               block_size_);
  if (const Entry* entry = find(parent, tokens)) return entry->chain;
  ZIPAGE_CHECK(!pool_.indexed(block), "block {} is published twice", block.value());
  const uint64_t key = hash(parent, tokens);
  const Chain chain = next_chain_++;
  entries_.emplace(key, Entry{parent, chain, block, {tokens.begin(), tokens.end()}});
  hash_of_block_.emplace(block, key);
  pool_.set_indexed(block, true);
  return chain;
}

void PrefixCache::forget(BlockId block) {
  const auto key = hash_of_block_.find(block);
  if (key == hash_of_block_.end()) return;
  const auto [begin, end] = entries_.equal_range(key->second);
  for (auto it = begin; it != end; ++it) {
    if (it->second.block == block) {
      entries_.erase(it);
      break;
    }
  }
  hash_of_block_.erase(key);
  pool_.set_indexed(block, false);
}

void PrefixCache::clear() {
  while (!hash_of_block_.empty()) forget(hash_of_block_.begin()->first);
}

}  // namespace zipage
