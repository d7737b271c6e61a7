#include "text/bpe.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <queue>

#include "base/check.h"
#include "text/byte_level.h"
#include "text/utf8.h"

namespace zipage {

void Vocabulary::add(int32_t id, std::string_view text) {
  ZIPAGE_CHECK(id >= 0 && id <= kMaxId, "token id {}", id);
  const std::string& kept = storage_.emplace_back(text);
  if (static_cast<size_t>(id) >= texts_.size()) texts_.resize(static_cast<size_t>(id) + 1);
  texts_[id] = kept;
  ids_.insert_or_assign(kept, id);
}

BpeModel::BpeModel(const Vocabulary& vocabulary, BpeOptions options) : vocabulary_(vocabulary), options_(options) {
  for (int byte = 0; byte < 256; ++byte) {
    std::string token;
    if (options_.byte_level) {
      append_utf8(token, byte_level_char(static_cast<uint8_t>(byte)));
    } else {
      token = fmt::format("<0x{:02X}>", byte);
    }
    byte_ids_[byte] = options_.byte_level || options_.byte_fallback ? vocabulary_.find(token) : -1;
  }
  grow(16);
}

void BpeModel::reserve(size_t merges) {
  size_t slots = table_.size();
  while (slots * 2 < merges * 3) slots *= 2;
  if (slots > table_.size()) grow(slots);
}

void BpeModel::grow(size_t slots) {
  std::vector<Merge> old = std::move(table_);
  table_.assign(slots, {});
  num_merges_ = 0;
  for (const Merge& merge : old) {
    if (merge.pair == kNoPair) continue;
    add_merge(static_cast<int32_t>(merge.pair >> 32), static_cast<int32_t>(merge.pair & 0xFFFFFFFFU), merge.merged,
              merge.rank);
  }
}

namespace {

size_t hash_pair(uint64_t pair) {
  pair *= 0x9E3779B97F4A7C15U;
  return static_cast<size_t>(pair ^ pair >> 29);
}

}  // namespace

void BpeModel::add_merge(int32_t left, int32_t right, int32_t merged, uint32_t rank) {
  if ((num_merges_ + 1) * 3 > table_.size() * 2) grow(table_.size() * 2);
  const uint64_t pair = pair_of(left, right);
  const size_t mask = table_.size() - 1;
  size_t slot = hash_pair(pair) & mask;
  while (table_[slot].pair != kNoPair && table_[slot].pair != pair) slot = (slot + 1) & mask;
  if (table_[slot].pair == kNoPair) ++num_merges_;
  table_[slot] = {pair, rank, merged};
}

const BpeModel::Merge* BpeModel::find(int32_t left, int32_t right) const {
  const uint64_t pair = pair_of(left, right);
  const size_t mask = table_.size() - 1;
  for (size_t slot = hash_pair(pair) & mask; table_[slot].pair != kNoPair; slot = (slot + 1) & mask) {
    if (table_[slot].pair == pair) return &table_[slot];
  }
  return nullptr;
}

void BpeModel::encode(std::string_view word, std::vector<int32_t>& ids) const {
  if (word.empty()) return;
  if (options_.ignore_merges) {
    const int32_t whole = options_.byte_level ? vocabulary_.find(to_byte_level(word)) : vocabulary_.find(word);
    if (whole >= 0) {
      ids.push_back(whole);
      return;
    }
  }
  constexpr size_t kShort = 32;  // symbols: below, looking at all pairs is faster than a heap
  const size_t begin = ids.size();
  symbols(word, ids);
  if (ids.size() - begin <= kShort) {
    merge_short(ids, begin);
  } else {
    merge_long(ids, begin);
  }
}

void BpeModel::symbols(std::string_view word, std::vector<int32_t>& ids) const {
  bool unk_pending = false;  // an unknown token comes behind the bytes that a later character falls back to
  const auto flush = [&] {
    if (unk_pending) ids.push_back(options_.unk_id);
    unk_pending = false;
  };
  const auto unknown = [&] {
    if (options_.unk_id < 0) return;
    if (!options_.fuse_unk) flush();
    unk_pending = true;
  };
  if (options_.byte_level) {
    for (const char c : word) {
      const int32_t id = byte_ids_[static_cast<uint8_t>(c)];
      if (id < 0) {
        unknown();
        continue;
      }
      flush();
      ids.push_back(id);
    }
    flush();
    return;
  }
  for (size_t at = 0; at < word.size();) {
    const size_t size = next_utf8_unit(word.substr(at)).size;
    const std::string_view character = word.substr(at, size);
    at += size;
    if (const int32_t id = vocabulary_.find(character); id >= 0) {
      flush();
      ids.push_back(id);
      continue;
    }
    const bool falls_back = options_.byte_fallback && std::all_of(character.begin(), character.end(), [&](char c) {
                              return byte_ids_[static_cast<uint8_t>(c)] >= 0;
                            });
    if (!falls_back) {
      unknown();
      continue;
    }
    for (const char c : character) ids.push_back(byte_ids_[static_cast<uint8_t>(c)]);
  }
  flush();
}

void BpeModel::merge_short(std::vector<int32_t>& ids, size_t begin) const {
  constexpr uint32_t kNone = std::numeric_limits<uint32_t>::max();
  size_t count = ids.size() - begin;
  int32_t* symbol = ids.data() + begin;
  std::array<uint32_t, 32> rank{};  // of the pair that starts here
  std::array<int32_t, 32> merged{};
  const auto look = [&](size_t i) {
    const Merge* merge = find(symbol[i], symbol[i + 1]);
    rank[i] = merge == nullptr ? kNone : merge->rank;
    merged[i] = merge == nullptr ? -1 : merge->merged;
  };
  for (size_t i = 0; i + 1 < count; ++i) look(i);
  while (count > 1) {
    const size_t best = static_cast<size_t>(std::min_element(rank.begin(), rank.begin() + (count - 1)) - rank.begin());
    if (merged[best] < 0) break;
    symbol[best] = merged[best];
    std::copy(symbol + best + 2, symbol + count, symbol + best + 1);
    std::copy(rank.begin() + best + 1, rank.begin() + count - 1, rank.begin() + best);
    std::copy(merged.begin() + best + 1, merged.begin() + count - 1, merged.begin() + best);
    --count;
    if (best + 1 < count) look(best);
    if (best > 0) look(best - 1);
  }
  ids.resize(begin + count);
}

void BpeModel::merge_long(std::vector<int32_t>& ids, size_t begin) const {
  struct Symbol {
    int32_t id;  // -1: merged into its left neighbour
    int32_t prev, next;
  };
  struct Candidate {
    uint32_t rank;
    int32_t at;
    int32_t merged;
    bool operator>(const Candidate& other) const { return rank != other.rank ? rank > other.rank : at > other.at; }
  };
  const auto count = static_cast<int32_t>(ids.size() - begin);
  std::vector<Symbol> symbol(static_cast<size_t>(count));
  for (int32_t i = 0; i < count; ++i) symbol[i] = {ids[begin + i], i - 1, i + 1 < count ? i + 1 : -1};
  std::vector<Candidate> initial;
  initial.reserve(static_cast<size_t>(count));
  for (int32_t i = 0; i + 1 < count; ++i) {
    if (const Merge* merge = find(symbol[i].id, symbol[i + 1].id)) initial.push_back({merge->rank, i, merge->merged});
  }
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue(std::greater<>{}, std::move(initial));
  const auto push = [&](int32_t left) {
    if (left < 0 || symbol[left].next < 0) return;
    if (const Merge* merge = find(symbol[left].id, symbol[symbol[left].next].id)) {
      queue.push({merge->rank, left, merge->merged});
    }
  };
  while (!queue.empty()) {
    const Candidate best = queue.top();
    queue.pop();
    Symbol& left = symbol[best.at];
    if (left.id < 0 || left.next < 0) continue;
    Symbol& right = symbol[left.next];
    const Merge* merge = find(left.id, right.id);
    if (merge == nullptr || merge->merged != best.merged) continue;  // the pair has changed since
    left.id = best.merged;
    right.id = -1;
    left.next = right.next;
    if (left.next >= 0) symbol[left.next].prev = best.at;
    push(left.prev);
    push(best.at);
  }
  ids.resize(begin);
  for (int32_t i = 0; i >= 0; i = symbol[i].next) ids.push_back(symbol[i].id);
}

}  // namespace zipage
