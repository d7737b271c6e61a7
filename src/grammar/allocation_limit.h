// Bounds what a piece of code on this thread may cost: XGrammar has no limits of its own, and a grammar that somebody
// sends can ask for any amount of time and memory. Both are checked where memory is asked for, which code that works on
// data structures does all the time.
//
// Thread-safety: a limit belongs to the thread that made it, and ends on it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>

namespace zipage {

// Thrown by operator new of a thread under a limit.
class LimitExceeded : public std::bad_alloc {
 public:
  explicit LimitExceeded(bool of_time) : of_time_(of_time) {}
  bool of_time() const { return of_time_; }
  const char* what() const noexcept override { return of_time_ ? "out of time" : "out of memory"; }

 private:
  bool of_time_;
};

class AllocationLimit {
 public:
  // Processor time of this thread, and bytes held beyond those of now. REQUIRES: no other limit on this thread.
  AllocationLimit(double seconds, size_t bytes);
  ~AllocationLimit();
  AllocationLimit(const AllocationLimit&) = delete;
  AllocationLimit& operator=(const AllocationLimit&) = delete;
};

}  // namespace zipage
