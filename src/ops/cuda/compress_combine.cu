// Stages 5 and 6: one number per slot, and what may not go whatever its number.
#include "ops/cuda/compress_source.cuh"

namespace zipage::cuda {
namespace {

// ---- numbers ----
constexpr int kThreads = 256;

struct Args {
  Source source;
  const float *scores, *redundancy;  // or null
  float* out;
  ScoreCombine combine;
  float lambda;
  int sinks, newest;
  // Protected prompt positions [0, head_end) and [tail_begin, prompt_len); prompt_len 0 = none.
  int prompt_len, head_end, tail_begin;
  bool random;
  uint64_t seed;
};

// ---- kernels ----

// Splitmix64's finalizer over the four coordinates; 24 bits of it are a float in [0, 1) without rounding.
__device__ float hash_unit(uint64_t seed, uint64_t unit, int32_t position) {
  uint64_t x = seed ^ (unit * 0x9e3779b97f4a7c15ULL) ^ (static_cast<uint64_t>(position) << 32U);
  for (int round = 0; round < 2; ++round) {
    x += 0x9e3779b97f4a7c15ULL;
    x = (x ^ (x >> 30U)) * 0xbf58476d1ce4e5b9ULL;
    x = (x ^ (x >> 27U)) * 0x94d049bb133111ebULL;
    x ^= x >> 31U;
  }
  return static_cast<float>(x >> 40U) * 5.9604644775390625e-8F;  // 2^-24
}

__global__ void combine_kernel(const __grid_constant__ Args a) {
  wait_for_previous();
  const int t = blockIdx.x * kThreads + threadIdx.x, unit = blockIdx.y, num_slots = a.source.num_slots;
  if (t >= num_slots) return;
  const int64_t i = int64_t{unit} * num_slots + t;
  const float score = a.scores != nullptr ? a.scores[i] : 0.0F;
  float f = score;
  if (a.redundancy != nullptr && a.combine == ScoreCombine::kLog) {
    f = a.lambda * logf(num_slots * score + kLeastScore) -
        (1.0F - a.lambda) * logf(fmaxf(num_slots * a.redundancy[i], kLeastRedundancy));
  } else if (a.redundancy != nullptr) {
    f = a.lambda * score - (1.0F - a.lambda) * a.redundancy[i];
  }
  if (a.random) f = hash_unit(a.seed, static_cast<uint64_t>(unit), a.source.position(unit, t));
  bool keep = t < a.sinks || t >= num_slots - a.newest;
  if (!keep && a.prompt_len > 0) {
    const int position = a.source.position(unit, t);
    keep = position < a.prompt_len && (position < a.head_end || position >= a.tail_begin);
  }
  a.out[i] = keep ? INFINITY : f;
}

}  // namespace

// ---- launcher ----

void combine(const Launch& launch, const CombineParams& p) {
  const CompressionParams& c = p.params;
  const int prompt = c.protect_prompt ? p.source.prompt_len : 0;
  const bool whole = prompt <= c.budget / 2;
  const int newest = c.window > c.recent ? c.window : c.recent;
  const Args a{.source = Source(p.source),
               .scores = p.scores,
               .redundancy = p.redundancy,
               .out = p.out,
               .combine = c.combine,
               .lambda = c.lambda,
               .sinks = c.sinks,
               .newest = newest,
               .prompt_len = prompt,
               .head_end = whole ? prompt : c.budget / 4,
               .tail_begin = whole ? prompt : prompt - c.budget / 4,
               .random = c.random,
               .seed = c.random_seed};
  const dim3 grid(ceil_div(p.source.num_slots, kThreads), a.source.num_units());
  run(launch, combine_kernel, grid, kThreads, 0, a);
}

}  // namespace zipage::cuda
