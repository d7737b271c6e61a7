#include "ops/cpu/thread_pool.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <time.h>

#include <atomic>
#include <chrono>
#include <numeric>
#include <thread>
#include <vector>

namespace zipage::cpu {
namespace {

TEST(ThreadPool, EveryIndexRunsOnceWhateverTheGrain) {
  ThreadPool pool(3);
  for (int64_t n : {0, 1, 2, 7, 64, 1000}) {
    for (int64_t grain : {1, 3, 100, 5000}) {
      std::vector<int> counts(static_cast<size_t>(n));
      pool.parallel_for(n, grain, [&](int64_t begin, int64_t end, int) {
        for (int64_t i = begin; i < end; ++i) ++counts[static_cast<size_t>(i)];
      });
      EXPECT_EQ(counts, std::vector<int>(static_cast<size_t>(n), 1)) << n << " by " << grain;
    }
  }
}

TEST(ThreadPool, ThreadNumbersAreNeverUsedTwiceAtOnce) {
  ThreadPool pool(4);
  std::vector<std::atomic<int>> inside(4);
  std::atomic<int> clashes{0};
  for (int round = 0; round < 200; ++round) {
    pool.parallel_for(64, 1, [&](int64_t, int64_t, int thread) {
      if (inside[static_cast<size_t>(thread)].fetch_add(1) != 0) ++clashes;
      inside[static_cast<size_t>(thread)].fetch_sub(1);
    });
  }
  EXPECT_EQ(clashes.load(), 0);
}

TEST(ThreadPool, ManySmallCallsInARowLoseNothing) {
  ThreadPool pool(2);
  std::vector<int64_t> sums(8);
  for (int round = 0; round < 20000; ++round) {
    pool.parallel_for(8, 1, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) sums[static_cast<size_t>(i)] += i;
    });
  }
  for (size_t i = 0; i < sums.size(); ++i) EXPECT_EQ(sums[i], static_cast<int64_t>(i) * 20000);
}

TEST(ThreadPool, SeveralCallersAtOnceAllFinish) {
  ThreadPool pool(3);
  std::vector<std::thread> callers;
  std::vector<int64_t> sums(4);
  for (size_t caller = 0; caller < sums.size(); ++caller) {
    callers.emplace_back([&, caller] {
      std::vector<int64_t> parts(16);
      for (int round = 0; round < 2000; ++round) {
        pool.parallel_for(16, 1, [&](int64_t begin, int64_t end, int) {
          for (int64_t i = begin; i < end; ++i) parts[static_cast<size_t>(i)] += i;
        });
      }
      sums[caller] = std::accumulate(parts.begin(), parts.end(), int64_t{0});
    });
  }
  for (std::thread& caller : callers) caller.join();
  for (int64_t sum : sums) EXPECT_EQ(sum, 2000 * 120);
}

TEST(ThreadPool, IdleWorkersSleep) {
  ThreadPool pool(2);
  pool.parallel_for(64, 1, [](int64_t, int64_t, int) {});
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  rusage before{}, after{};
  getrusage(RUSAGE_SELF, &before);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  getrusage(RUSAGE_SELF, &after);
  const auto microseconds = [](const rusage& usage) {
    return (usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1000000L + usage.ru_utime.tv_usec + usage.ru_stime.tv_usec;
  };
  EXPECT_LT(microseconds(after) - microseconds(before), 50000);
}

TEST(Executor, WithoutAPoolRunsOnTheCallersThread) {
  Executor executor(nullptr);
  const auto caller = std::this_thread::get_id();
  int64_t covered = 0;
  executor.parallel_for(100, 1, [&](int64_t begin, int64_t end, int thread) {
    EXPECT_EQ(std::this_thread::get_id(), caller);
    EXPECT_EQ(thread, 0);
    covered += end - begin;
  });
  EXPECT_EQ(covered, 100);
}

TEST(Executor, ScratchIsAlignedAndOnePiecePerThread) {
  ThreadPool pool(2);
  Executor executor(&pool);
  std::byte* first = executor.scratch(0, 1000);
  std::byte* second = executor.scratch(1, 10);
  EXPECT_NE(first, second);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(first) % 64, 0U);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(second) % 64, 0U);
  EXPECT_EQ(executor.scratch(0, 500), first);
}

}  // namespace
}  // namespace zipage::cpu
