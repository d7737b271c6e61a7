#include "machine/peak.h"

#include <immintrin.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <functional>

#include "ops/cpu/isa.h"
#include "ops/cpu/memory.h"
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

__attribute__((target("avx512f"))) void read_avx512(const std::byte* data, int64_t bytes) {
  __m512i sums[8] = {};
  for (int64_t i = 0; i + 512 <= bytes; i += 512) {
    for (int j = 0; j < 8; ++j) sums[j] = _mm512_xor_si512(sums[j], _mm512_load_si512(data + i + 64 * j));
  }
  for (__m512i& sum : sums) asm volatile("" : : "v"(sum));
}

__attribute__((target("avx2"))) void read_avx2(const std::byte* data, int64_t bytes) {
  __m256i sums[8] = {};
  for (int64_t i = 0; i + 256 <= bytes; i += 256) {
    for (int j = 0; j < 8; ++j) {
      sums[j] = _mm256_xor_si256(sums[j], _mm256_load_si256(reinterpret_cast<const __m256i*>(data + i + 32 * j)));
    }
  }
  for (__m256i& sum : sums) asm volatile("" : : "x"(sum));
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
  const auto read = [&](int64_t bytes) {
    cpu::CpuBuffer memory(static_cast<size_t>(bytes), "bench");
    std::memset(memory.data(), 1, static_cast<size_t>(bytes));
    const int64_t part = bytes / 512;
    const double seconds = best_seconds([&] {
      pool.parallel_for(512, 1, [&](int64_t begin, int64_t end, int) {
        (wide ? read_avx512 : read_avx2)(memory.data() + begin * part, (end - begin) * part);
      });
    });
    return static_cast<double>(bytes) / seconds / 1e9;
  };
  peak.read_gb_per_s = read(int64_t{32} << 20);
  peak.far_read_gb_per_s = read(int64_t{1} << 30);
  const double seconds = best_seconds([&] {
    pool.parallel_for(threads, 1, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) (wide ? multiply_avx512 : multiply_avx2)();
    });
  });
  peak.f32_gflops = static_cast<double>(threads * kSteps * kChains * (wide ? 16 : 8) * 2) / seconds / 1e9;
  return peak;
}

}  // namespace zipage::bench
