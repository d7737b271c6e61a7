// Ends a thought that has used up its tokens: from then on the end-of-thinking ids are forced, one by one.
//
// Thread-safety: one thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace zipage {

class ThinkingBudget {
 public:
  // `begin` may be empty when the prompt has opened the thought (`thinking`).
  ThinkingBudget(int budget, std::vector<int32_t> begin, std::vector<int32_t> end, bool thinking)
      : budget_(budget), begin_(std::move(begin)), end_(std::move(end)), thinking_(thinking) {}

  // The token that must come next, if one must.
  std::optional<int32_t> forced() const {
    if (!thinking_ || used_ < budget_ || end_.empty()) return std::nullopt;
    return end_[num_forced_];
  }

  // `output`: all output tokens so far, the newest last.
  void accept(std::span<const int32_t> output) {
    if (!thinking_) {
      if (!ended_ && ends_with(output, begin_)) thinking_ = true;
      return;
    }
    if (forced()) {
      if (++num_forced_ == end_.size()) end();
      return;
    }
    ++used_;
    if (ends_with(output, end_)) end();
  }

 private:
  static bool ends_with(std::span<const int32_t> tokens, const std::vector<int32_t>& tail) {
    return !tail.empty() && tokens.size() >= tail.size() && std::ranges::equal(tokens.last(tail.size()), tail);
  }
  void end() {
    thinking_ = false;
    ended_ = true;
  }

  int budget_;
  std::vector<int32_t> begin_, end_;
  bool thinking_;
  bool ended_ = false;
  int used_ = 0;
  size_t num_forced_ = 0;
};

}  // namespace zipage
