// Stages 5 and 6 for a slot: one number, and what may not go whatever its number.
#pragma once

#include "ops/cuda/compress_source.cuh"

namespace zipage::cuda {

struct Combine {
  Source source;
  bool has_redundancy;
  ScoreCombine combine;
  float lambda;
  int sinks, newest;
  // Protected prompt positions [0, head_end) and [tail_begin, prompt_len); prompt_len 0 = none.
  int prompt_len, head_end, tail_begin;
  bool random;
  uint64_t seed;

  explicit Combine(const CombineParams& p);

#ifdef __CUDACC__
  // F of slot t with S and R' (0 where there is none).
  __device__ float final_score(int unit, int t, float score, float redundancy) const {
    bool keep = keeps_by_slot(t);
    if (!keep && prompt_len > 0) {
      const int position = source.position(unit, t);
      keep = position < prompt_len && (position < head_end || position >= tail_begin);
    }
    if (keep) return INFINITY;
    if (random) return hash_unit(seed, static_cast<uint64_t>(unit), source.position(unit, t));
    if (!has_redundancy) return score;
    return combine == ScoreCombine::kLog ? weigh_logs(score, redundancy) : weigh(score, redundancy);
  }
  // Its parts; where no position is asked for they are all there is, and take a fraction of the code.
  __device__ bool asks_positions() const {
    return prompt_len > 0 || random;
  }
  __device__ bool keeps_by_slot(int t) const {
    return t < sinks || t >= source.num_slots - newest;
  }
  __device__ float weigh(float score, float redundancy) const {
    return lambda * score - (1.0F - lambda) * redundancy;
  }
  __device__ float weigh_logs(float score, float redundancy) const {
    const float slots = static_cast<float>(source.num_slots);
    return lambda * kLn2 * log2_fast(slots * score + kLeastScore) -
           (1.0F - lambda) * kLn2 * log2_fast(fmaxf(slots * redundancy, kLeastRedundancy));
  }

 private:
  static constexpr float kLn2 = 0.693147180559945309F;

  // Of what is at least kLeastRedundancy, so never denormal. Wrong by no more than 2^-22 or an ulp.
  __device__ static float log2_fast(float x) {
    float y;
    asm("lg2.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
    return y;
  }
  // Splitmix64's finalizer over the four coordinates; 24 bits of it are a float in [0, 1) without rounding.
  __device__ static float hash_unit(uint64_t seed, uint64_t unit, int32_t position) {
    uint64_t x = seed ^ (unit * 0x9e3779b97f4a7c15ULL) ^ (static_cast<uint64_t>(position) << 32U);
    for (int round = 0; round < 2; ++round) {
      x += 0x9e3779b97f4a7c15ULL;
      x = (x ^ (x >> 30U)) * 0xbf58476d1ce4e5b9ULL;
      x = (x ^ (x >> 27U)) * 0x94d049bb133111ebULL;
      x ^= x >> 31U;
    }
    return static_cast<float>(x >> 40U) * 5.9604644775390625e-8F;  // 2^-24
  }
#endif
};

}  // namespace zipage::cuda
