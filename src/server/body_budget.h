// The memory that the bodies of all requests together may hold, from their first byte until they are answered.
//
// The first kFree bytes of each body are not counted: whoever fills the budget with huge bodies keeps huge bodies out,
// not everybody's everyday ones.
//
// Thread-safety: all methods may be called from any thread.
#pragma once

#include <atomic>
#include <cstddef>

namespace zipage {

class BodyBudget {
 public:
  static constexpr size_t kFree = 64 * 1024;

  explicit BodyBudget(size_t bytes) : total_(bytes) {}

  // A body has grown from `before` bytes to `after`. False when there is no room for it: it stays counted as `before`.
  bool grow(size_t before, size_t after) {
    const size_t more = counted(after) - counted(before);
    if (more == 0) return true;
    if (used_.fetch_add(more) + more <= total_) return true;
    used_ -= more;
    return false;
  }
  // A body of so many bytes is gone.
  void release(size_t bytes) { used_ -= counted(bytes); }

  size_t total() const { return total_; }
  size_t used() const { return used_; }

 private:
  static size_t counted(size_t bytes) { return bytes > kFree ? bytes - kFree : 0; }

  const size_t total_;
  std::atomic<size_t> used_{0};
};

}  // namespace zipage
