// Byte pair encoding of one word, and the vocabulary it draws on.
//
// Thread-safety: immutable once built; encode() may run concurrently.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace zipage {

// Token strings by id and back. Ids may have holes.
class Vocabulary {
 public:
  static constexpr int32_t kMaxId = (1 << 24) - 1;

  // The last text of an id and the last id of a text win. REQUIRES: 0 <= id <= kMaxId.
  void add(int32_t id, std::string_view text);
  int32_t find(std::string_view text) const {
    const auto it = ids_.find(text);
    return it == ids_.end() ? -1 : it->second;
  }
  std::string_view text(int32_t id) const {
    return id >= 0 && static_cast<size_t>(id) < texts_.size() ? texts_[id] : std::string_view();
  }
  int size() const { return static_cast<int>(texts_.size()); }  // largest id + 1
  void reserve(size_t tokens) { ids_.reserve(tokens); }

 private:
  std::deque<std::string> storage_;  // addresses stay
  std::vector<std::string_view> texts_;
  std::unordered_map<std::string_view, int32_t> ids_;
};

struct BpeOptions {
  bool byte_level = false;     // words are bytes; the vocabulary spells them in GPT-2's alphabet
  bool byte_fallback = false;  // a character that is no token becomes its bytes' tokens <0x..>
  bool ignore_merges = false;  // a word that is a token is that token, whatever the merges say
  bool fuse_unk = false;       // a run of unknown characters is one unknown token
  int32_t unk_id = -1;
};

class BpeModel {
 public:
  // `vocabulary` must outlive this.
  BpeModel(const Vocabulary& vocabulary, BpeOptions options);

  void reserve(size_t merges);
  // Tokens left and right next to each other may become `merged`; lower ranks go first, equal ranks from the left.
  void add_merge(int32_t left, int32_t right, int32_t merged, uint32_t rank);

  // Appends the word's ids. O(n log n).
  void encode(std::string_view word, std::vector<int32_t>& ids) const;

 private:
  struct Merge {
    uint64_t pair = kNoPair;
    uint32_t rank = 0;
    int32_t merged = -1;
  };
  static constexpr uint64_t kNoPair = ~uint64_t{0};
  static uint64_t pair_of(int32_t left, int32_t right) {
    return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
  }
  const Merge* find(int32_t left, int32_t right) const;
  void grow(size_t slots);
  void symbols(std::string_view word, std::vector<int32_t>& ids) const;
  void merge_short(std::vector<int32_t>& ids, size_t begin) const;
  void merge_long(std::vector<int32_t>& ids, size_t begin) const;

  const Vocabulary& vocabulary_;
  BpeOptions options_;
  std::array<int32_t, 256> byte_ids_{};  // byte_level: the byte's character; byte_fallback: <0x..>
  std::vector<Merge> table_;             // open addressing, a power of two, at most 2/3 full
  size_t num_merges_ = 0;
};

}  // namespace zipage
