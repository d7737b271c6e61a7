// The noise of sampling: a pure function of (seed, position, token id), so that batch mates, batch order, preemption
// and the device change nothing. Plain integer arithmetic, the same on the host and in CUDA.
//
// Gumbel-max: argmax over logit / temperature + gumbel(uniform) samples from the softmax.
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#define ZIPAGE_HOST_DEVICE __host__ __device__
#else
#define ZIPAGE_HOST_DEVICE
#endif

namespace zipage {

// Noise of one row at one position: two keys for sample_noise_bits.
struct SampleNoiseKey {
  uint32_t first = 0;
  uint32_t second = 0;
};

ZIPAGE_HOST_DEVICE inline SampleNoiseKey sample_noise_key(uint64_t seed, int64_t position) {
  // The finalizer of splitmix64 over both words: every bit of the result depends on every bit of either.
  uint64_t x = seed;
  for (int round = 0; round < 2; ++round) {
    x += 0x9e3779b97f4a7c15ULL + static_cast<uint64_t>(position) * 0xd1342543de82ef95ULL;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
    x ^= x >> 31;
  }
  return {static_cast<uint32_t>(x), static_cast<uint32_t>(x >> 32)};
}

// 32 random bits of a token; 32-bit steps only, so that vectors of them are cheap.
ZIPAGE_HOST_DEVICE inline uint32_t sample_noise_bits(SampleNoiseKey key, uint32_t token) {
  uint32_t x = (token + key.first) * 0x9e3779b1U;
  x = (x ^ (x >> 16)) * 0x85ebca6bU;
  x ^= key.second;
  x = (x ^ (x >> 13)) * 0xc2b2ae35U;
  x = (x ^ (x >> 16)) * 0x27d4eb2fU;
  return x ^ (x >> 15);
}

// The uniform number in (0, 1) of the bits, and -log(-log(1 - u)). A small u is exact, and it is a small u that makes
// the large noise that decides.
ZIPAGE_HOST_DEVICE inline float sample_noise_uniform(uint32_t bits) {
  return (static_cast<float>(bits) + 0.5F) * 2.3283064365386963e-10F;  // 2^-32
}

// The largest and smallest values that -log(-log(1 - u)) takes: a token that trails by more than their difference
// loses.
constexpr float kSampleNoiseLargest = 22.9F;
constexpr float kSampleNoiseSmallest = -3.2F;

}  // namespace zipage
