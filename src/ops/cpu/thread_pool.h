// A pinned thread pool whose waiting threads give way, and the executor through which kernels use it.
//
// A parallel_for is cut into chunks that threads claim one by one, so a worker that the machine keeps busy with
// something else costs at most the chunk it holds: the caller never waits for a worker that has claimed nothing.
// Waiting threads spin briefly, then yield, then sleep.
//
// Thread-safety: parallel_for may be called from any thread, not from a body; while one call has the workers, others
// run on their own thread alone.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <thread>
#include <type_traits>
#include <vector>

namespace zipage::cpu {

// The cores this process may use, in the kernel's order.
std::vector<int> allowed_cores();

class ThreadPool {
 public:
  // The caller of parallel_for is one of the threads: num_threads - 1 workers are started, each pinned to a core. The
  // caller is not: threads that it starts would inherit its core, and the scheduler finds it the one that is left.
  // 0 = one thread per allowed core.
  explicit ThreadPool(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const { return num_threads_; }

  // body(begin, end, thread) over [0, n) in chunks of at least `grain`; thread in [0, num_threads()), and no two chunks
  // of one call run with the same `thread` at once. Returns when all is done. The body must not throw.
  template <typename Body>
  void parallel_for(int64_t n, int64_t grain, Body&& body) {
    using Plain = std::remove_reference_t<Body>;
    run(n, grain, const_cast<void*>(static_cast<const void*>(&body)),
        [](void* context, int64_t begin, int64_t end, int thread) {
          (*static_cast<Plain*>(context))(begin, end, thread);
        });
  }

 private:
  using Call = void (*)(void* context, int64_t begin, int64_t end, int thread);

  void run(int64_t n, int64_t grain, void* context, Call call);
  void work(int thread);                         // a worker's life
  void take_chunks(uint32_t epoch, int thread);  // until none of that job is left

  // The job: written by its caller before ticket_ names its epoch, read by a thread that holds an unfinished chunk of
  // it.
  void* context_ = nullptr;
  Call call_ = nullptr;
  int64_t n_ = 0;
  int64_t chunk_ = 0;
  uint32_t num_chunks_ = 0;

  alignas(64) std::atomic<uint64_t> ticket_{0};  // epoch << 32 | chunks not yet claimed
  alignas(64) std::atomic<uint32_t> done_{0};    // chunks finished
  alignas(64) std::atomic<uint32_t> wake_{0};    // what sleeping workers wait on
  std::atomic<int> sleepers_{0};
  std::atomic<bool> busy_{false};
  std::atomic<bool> stopping_{false};
  const std::vector<int> cores_;
  const int num_threads_;
  std::vector<std::thread> workers_;
};

// What kernels are given: the pool's threads, or the calling thread alone (for low-priority work beside the pool's),
// and scratch memory per thread that lives as long as the executor.
//
// Thread-safety: one thread at a time.
class Executor {
 public:
  explicit Executor(ThreadPool* pool);  // null: inline, on the calling thread

  int num_threads() const { return pool_ == nullptr ? 1 : pool_->num_threads(); }

  template <typename Body>
  void parallel_for(int64_t n, int64_t grain, Body&& body) {
    if (pool_ != nullptr) {
      pool_->parallel_for(n, grain, body);
    } else if (n > 0) {
      body(int64_t{0}, n, 0);
    }
  }

  // At least `bytes` bytes, 64-byte aligned, contents unspecified, valid until the next call with the same `thread`.
  // Inside a body use the body's `thread`; `shared_scratch` is a further piece for data that all threads see.
  std::byte* scratch(int thread, size_t bytes) { return grow(scratch_[static_cast<size_t>(thread) + 1], bytes); }
  std::byte* shared_scratch(size_t bytes) { return grow(scratch_[0], bytes); }

 private:
  struct Piece {
    std::unique_ptr<std::byte[]> memory;
    std::byte* aligned = nullptr;
    size_t bytes = 0;
  };
  static std::byte* grow(Piece& piece, size_t bytes);

  ThreadPool* pool_;
  std::vector<Piece> scratch_;
};

}  // namespace zipage::cpu
