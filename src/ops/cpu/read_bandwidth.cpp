#include "ops/cpu/read_bandwidth.h"

#include <immintrin.h>

#include <algorithm>
#include <chrono>
#include <cstring>

#include "ops/cpu/isa.h"
#include "ops/cpu/memory.h"

namespace zipage::cpu {
namespace {

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

}  // namespace

double read_bytes_per_second(ThreadPool& pool, int64_t bytes, int tries) {
  if (best_isa() == Isa::kPortable) return 0;
  using Clock = std::chrono::steady_clock;
  constexpr int64_t kParts = 512;
  CpuBuffer memory(static_cast<size_t>(bytes), "read bandwidth");
  std::memset(memory.data(), 1, static_cast<size_t>(bytes));
  const auto read = best_isa() == Isa::kAvx512 ? read_avx512 : read_avx2;
  const int64_t part = bytes / kParts;
  double best = 1e9;
  for (int i = 0; i < tries; ++i) {
    const Clock::time_point start = Clock::now();
    pool.parallel_for(
        kParts, 1, [&](int64_t begin, int64_t end, int) { read(memory.data() + begin * part, (end - begin) * part); });
    best = std::min(best, std::chrono::duration<double>(Clock::now() - start).count());
  }
  return static_cast<double>(bytes) / best;
}

}  // namespace zipage::cpu
