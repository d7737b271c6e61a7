#include "ops/cpu/thread_pool.h"

#include <immintrin.h>
#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <chrono>

#include "base/thread_role.h"

namespace zipage::cpu {
namespace {

// A chunk count per thread that evens out threads of unequal speed at the price of one contended claim a chunk.
constexpr int64_t kChunksPerThread = 16;
constexpr int kSpins = 2000;                                  // about 20 to 50 us of pauses
constexpr auto kYieldTime = std::chrono::microseconds(2000);  // then sleep

void pin_to(int core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<size_t>(core), &set);
  pthread_setaffinity_np(pthread_self(), sizeof(set), &set);
}

std::vector<int> read_allowed_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cores;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) {
    for (int core = 0; core < CPU_SETSIZE; ++core) {
      if (CPU_ISSET(static_cast<size_t>(core), &set)) cores.push_back(core);
    }
  }
  if (cores.empty()) cores.push_back(0);
  return cores;
}

}  // namespace

std::vector<int> allowed_cores() {
  // Read once: a later call may come from a thread with a narrower choice.
  static const std::vector<int> cores = read_allowed_cores();
  return cores;
}

ThreadPool::ThreadPool(int num_threads)
    : cores_(allowed_cores()), num_threads_(num_threads > 0 ? num_threads : static_cast<int>(cores_.size())) {
  for (int thread = 1; thread < num_threads_; ++thread) {
    workers_.emplace_back([this, thread] { work(thread); });
  }
}

ThreadPool::~ThreadPool() {
  stopping_.store(true);
  wake_.fetch_add(1);
  wake_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::run(int64_t n, int64_t grain, void* context, Call call) {
  if (n <= 0) return;
  grain = std::max<int64_t>(grain, 1);
  const int64_t threads = num_threads();
  if (threads == 1 || n <= grain || busy_.exchange(true, std::memory_order_acquire)) {
    call(context, 0, n, 0);
    return;
  }
  const int64_t pieces = threads * kChunksPerThread;
  const int64_t chunk = std::max(grain, (n + pieces - 1) / pieces);
  const auto chunks = static_cast<uint32_t>((n + chunk - 1) / chunk);
  context_ = context;
  call_ = call;
  n_ = n;
  chunk_ = chunk;
  num_chunks_ = chunks;
  done_.store(0, std::memory_order_relaxed);
  const uint32_t epoch = static_cast<uint32_t>(ticket_.load(std::memory_order_relaxed) >> 32) + 1;
  ticket_.store(static_cast<uint64_t>(epoch) << 32 | chunks, std::memory_order_seq_cst);
  if (sleepers_.load(std::memory_order_seq_cst) > 0) {
    wake_.fetch_add(1);
    wake_.notify_all();
  }
  take_chunks(epoch, 0);
  for (int spins = 0; done_.load(std::memory_order_acquire) != chunks; ++spins) {
    if (spins < kSpins) {
      _mm_pause();
    } else {
      sched_yield();
    }
  }
  busy_.store(false, std::memory_order_release);
}

void ThreadPool::take_chunks(uint32_t epoch, int thread) {
  uint64_t ticket = ticket_.load(std::memory_order_acquire);
  while (static_cast<uint32_t>(ticket >> 32) == epoch && static_cast<uint32_t>(ticket) != 0) {
    if (!ticket_.compare_exchange_weak(ticket, ticket - 1, std::memory_order_acq_rel, std::memory_order_acquire))
      continue;
    // The claimed chunk is unfinished, so the caller still waits and the job's fields stand still.
    const int64_t begin = static_cast<int64_t>(num_chunks_ - static_cast<uint32_t>(ticket)) * chunk_;
    call_(context_, begin, std::min(n_, begin + chunk_), thread);
    done_.fetch_add(1, std::memory_order_release);
    ticket = ticket_.load(std::memory_order_acquire);
  }
}

void ThreadPool::work(int thread) {
  name_thread("zipage-pool");
  // With more threads than cores, pinning only takes freedom away.
  if (num_threads() <= static_cast<int>(cores_.size())) pin_to(cores_[static_cast<size_t>(thread)]);
  uint32_t seen = 0;
  const auto has_work = [&] {
    const uint64_t ticket = ticket_.load(std::memory_order_seq_cst);
    return static_cast<uint32_t>(ticket >> 32) != seen && static_cast<uint32_t>(ticket) != 0;
  };
  while (!stopping_.load(std::memory_order_relaxed)) {
    bool found = false;
    for (int spins = 0; spins < kSpins && !found; ++spins) {
      found = has_work();
      if (!found) _mm_pause();
    }
    if (!found) {
      const auto sleep_at = std::chrono::steady_clock::now() + kYieldTime;
      while (!(found = has_work()) && std::chrono::steady_clock::now() < sleep_at) sched_yield();
    }
    if (!found) {
      const uint32_t before = wake_.load();
      sleepers_.fetch_add(1, std::memory_order_seq_cst);
      if (!has_work() && !stopping_.load()) wake_.wait(before);
      sleepers_.fetch_sub(1, std::memory_order_seq_cst);
      continue;
    }
    seen = static_cast<uint32_t>(ticket_.load(std::memory_order_acquire) >> 32);
    take_chunks(seen, thread);
  }
}

Executor::Executor(ThreadPool* pool) : pool_(pool), scratch_(static_cast<size_t>(num_threads()) + 1) {}

std::byte* Executor::grow(Piece& piece, size_t bytes) {
  constexpr size_t kAlign = 64;
  if (bytes > piece.bytes) {
    piece.memory = std::make_unique_for_overwrite<std::byte[]>(bytes + kAlign);
    const auto address = reinterpret_cast<uintptr_t>(piece.memory.get());
    piece.aligned = piece.memory.get() + ((kAlign - address % kAlign) % kAlign);
    piece.bytes = bytes;
  }
  return piece.aligned;
}

}  // namespace zipage::cpu
