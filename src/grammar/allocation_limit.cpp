#include "grammar/allocation_limit.h"

#include <malloc.h>

#include <cstdlib>
#include <ctime>
#include <new>

namespace zipage {
namespace {

struct ThreadLimit {
  bool active = false;
  int64_t bytes_left = 0;
  int64_t deadline_ns = 0;
  uint32_t calls = 0;
};
thread_local constinit ThreadLimit limit;

int64_t thread_nanoseconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

constexpr uint32_t kCallsBetweenClockReads = 256;

void* allocate(size_t size) {
  void* memory = std::malloc(size == 0 ? 1 : size);
  if (memory == nullptr) throw std::bad_alloc();
  if (!limit.active) return memory;
  limit.bytes_left -= static_cast<int64_t>(malloc_usable_size(memory));
  const bool out_of_time = limit.calls++ % kCallsBetweenClockReads == 0 && thread_nanoseconds() > limit.deadline_ns;
  if (out_of_time || limit.bytes_left < 0) {
    // What unwinding and reporting allocate is not held against the thread.
    limit.active = false;
    std::free(memory);
    throw LimitExceeded(out_of_time);
  }
  return memory;
}

void release(void* memory) noexcept {
  if (limit.active && memory != nullptr) limit.bytes_left += static_cast<int64_t>(malloc_usable_size(memory));
  std::free(memory);
}

}  // namespace

AllocationLimit::AllocationLimit(double seconds, size_t bytes) {
  limit = {.active = true,
           .bytes_left = static_cast<int64_t>(bytes),
           .deadline_ns = thread_nanoseconds() + static_cast<int64_t>(seconds * 1e9)};
}

AllocationLimit::~AllocationLimit() {
  limit.active = false;
}

}  // namespace zipage

// The program's allocator: malloc, and the limit of a thread that has one. The array and the sized forms end up here;
// the form that does not throw has to be given as well, lest a sanitizer's own meets this file's operator delete.
void* operator new(size_t size) {
  return zipage::allocate(size);
}
void* operator new(size_t size, const std::nothrow_t&) noexcept {
  return std::malloc(size == 0 ? 1 : size);
}
void operator delete(void* memory) noexcept {
  zipage::release(memory);
}
void operator delete(void* memory, size_t) noexcept {
  zipage::release(memory);
}
