// Which tokens a sequence has seen, as penalties need them: distinct ids, and how often each is in the output.
//
// Thread-safety: one thread.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

namespace zipage {

class TokenHistory {
 public:
  void add_prompt(std::span<const int32_t> tokens) {
    for (int32_t token : tokens) slot(token);
  }
  void add_output(int32_t token) { ++counts_[slot(token)]; }

  std::span<const int32_t> ids() const { return ids_; }
  std::span<const int32_t> counts() const { return counts_; }  // occurrences in the output

 private:
  size_t slot(int32_t token) {
    const auto [it, added] = index_.try_emplace(token, ids_.size());
    if (added) {
      ids_.push_back(token);
      counts_.push_back(0);
    }
    return it->second;
  }

  std::unordered_map<int32_t, size_t> index_;
  std::vector<int32_t> ids_, counts_;
};

}  // namespace zipage
