// A fixed number of numbered places, each held by at most one owner: query slots, swap space.
//
// Thread-safety: one thread (the engine's).
#pragma once

#include <vector>

#include "base/check.h"

namespace zipage {

class Slots {
 public:
  explicit Slots(int count) : taken_(static_cast<size_t>(count), false) {
    free_.reserve(taken_.size());
    for (int i = count - 1; i >= 0; --i) free_.push_back(i);
  }

  int size() const { return static_cast<int>(taken_.size()); }
  int num_free() const { return static_cast<int>(free_.size()); }
  int num_used() const { return size() - num_free(); }

  // REQUIRES: num_free() > 0
  int take() {
    ZIPAGE_CHECK(!free_.empty(), "all {} slots are taken", size());
    const int slot = free_.back();
    free_.pop_back();
    taken_[static_cast<size_t>(slot)] = true;
    return slot;
  }
  void give_back(int slot) {
    ZIPAGE_CHECK(slot >= 0 && slot < size() && taken_[static_cast<size_t>(slot)], "slot {} is not taken", slot);
    taken_[static_cast<size_t>(slot)] = false;
    free_.push_back(slot);
  }

 private:
  std::vector<bool> taken_;
  std::vector<int> free_;
};

}  // namespace zipage
