#include "machine/peak.h"

#include <immintrin.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>

#include "ops/cpu/isa.h"
#include "ops/cpu/read_bandwidth.h"
#include "ops/cpu/thread_pool.h"

namespace zipage::bench {
namespace {

constexpr int kTries = 40;  // the best of them counts: others may be using the machine

double best_seconds(const std::function<void()>& work) {
  double best = 1e9;
  for (int i = 0; i < kTries; ++i) {
    const auto start = std::chrono::steady_clock::now();
    work();
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return best;
}

constexpr int64_t kSteps = 200000;
constexpr int kChains = 12;

__attribute__((target("avx512f"))) void multiply_avx512() {
  __m512 sums[kChains] = {};
  __m512 one = _mm512_set1_ps(1.0F);
  for (int64_t i = 0; i < kSteps; ++i) {
#pragma GCC unroll 12
    for (int j = 0; j < kChains; ++j) {
      sums[j] = _mm512_fmadd_ps(one, one, sums[j]);
      asm volatile("" : "+v"(sums[j]));
    }
  }
}

__attribute__((target("avx2,fma"))) void multiply_avx2() {
  __m256 sums[kChains] = {};
  __m256 one = _mm256_set1_ps(1.0F);
  for (int64_t i = 0; i < kSteps; ++i) {
#pragma GCC unroll 12
    for (int j = 0; j < kChains; ++j) {
      sums[j] = _mm256_fmadd_ps(one, one, sums[j]);
      asm volatile("" : "+x"(sums[j]));
    }
  }
}

}  // namespace

MachinePeak measure_peak(int num_threads) {
  cpu::ThreadPool pool(num_threads);
  const int64_t threads = pool.num_threads();
  const bool wide = cpu::best_isa() == cpu::Isa::kAvx512;
  MachinePeak peak;
  if (cpu::best_isa() == cpu::Isa::kPortable) return peak;
  peak.read_gb_per_s = cpu::read_bytes_per_second(pool, int64_t{32} << 20, kTries) / 1e9;
  peak.far_read_gb_per_s = cpu::read_bytes_per_second(pool, int64_t{1} << 30, kTries) / 1e9;
  const double seconds = best_seconds([&] {
    pool.parallel_for(threads, 1, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) (wide ? multiply_avx512 : multiply_avx2)();
    });
  });
  peak.f32_gflops = static_cast<double>(threads * kSteps * kChains * (wide ? 16 : 8) * 2) / seconds / 1e9;
  return peak;
}

}  // namespace zipage::bench
