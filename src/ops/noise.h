// Made-up numbers of weights and KV: a pure function of (seed, index), the same on the host and in CUDA.
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#define ZIPAGE_NOISE_INLINE __host__ __device__ inline
#else
#define ZIPAGE_NOISE_INLINE inline
#endif

namespace zipage {

// Uniform in [-1, 1).
ZIPAGE_NOISE_INLINE float noise_value(uint64_t seed, uint64_t index) {
  uint64_t x = (index + 1) * 0x9e3779b97f4a7c15ULL + seed * 0xd1342543de82ef95ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return static_cast<float>(x >> 40) * 0x1p-23F - 1.0F;
}

}  // namespace zipage
