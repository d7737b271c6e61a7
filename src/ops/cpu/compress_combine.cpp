// Stages 5 and 6: one number per slot, and what may not go whatever its number.
#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/cpu/compress_source.h"

namespace zipage::cpu {
namespace {

// Splitmix64's finalizer over the four coordinates; 24 bits of it are a float in [0, 1) without rounding.
float hash_unit(uint64_t seed, uint64_t task, int32_t position) {
  uint64_t x = seed ^ (task * 0x9e3779b97f4a7c15U) ^ (static_cast<uint64_t>(position) << 32U);
  for (int round = 0; round < 2; ++round) {
    x += 0x9e3779b97f4a7c15U;
    x = (x ^ (x >> 30U)) * 0xbf58476d1ce4e5b9U;
    x = (x ^ (x >> 27U)) * 0x94d049bb133111ebU;
    x ^= x >> 31U;
  }
  return static_cast<float>(x >> 40U) * 0x1p-24F;
}

// r null: F = S. s null counts as 0.
void combine_linear(float lambda, const float* s, const float* r, int num_slots, float* f) {
  const float weight = r == nullptr ? 1.0F : lambda;
  for (int t = 0; t < num_slots; ++t) f[t] = s == nullptr ? 0.0F : weight * s[t];
  if (r == nullptr) return;
  for (int t = 0; t < num_slots; ++t) f[t] -= (1.0F - lambda) * r[t];
}

void combine_log(float lambda, const float* s, const float* r, int num_slots, float* f) {
  const auto scale = static_cast<float>(num_slots);
  for (int t = 0; t < num_slots; ++t) {
    const float score = s == nullptr ? 0.0F : s[t];
    f[t] = lambda * std::log(scale * score + kLeastScore) -
           (1.0F - lambda) * std::log(std::max(scale * r[t], kLeastRedundancy));
  }
}

void protect(const CombineParams& p, const int32_t* positions, float* f) {
  constexpr float kKeep = std::numeric_limits<float>::infinity();
  const CompressionParams& c = p.params;
  const int num_slots = p.source.num_slots;
  const int newest = std::min(num_slots, c.newest_kept());
  std::fill_n(f, std::min(num_slots, c.sinks), kKeep);
  std::fill_n(f + num_slots - newest, newest, kKeep);
  if (!c.protect_prompt) return;
  // A prompt above half of the budget keeps its first and last quarter-budgets only: positions [0, head_end) and
  // [tail_begin, prompt_len).
  const int prompt = p.source.prompt_len;
  const bool whole = prompt <= c.budget / 2;
  const int head_end = whole ? prompt : c.budget / 4;
  const int tail_begin = whole ? prompt : prompt - c.budget / 4;
  for (int t = 0; t < num_slots; ++t) {
    if (positions[t] >= prompt) break;
    if (positions[t] < head_end || positions[t] >= tail_begin) f[t] = kKeep;
  }
}

}  // namespace

void CpuBackend::combine(Queue& queue, const CombineParams& p) {
  check_source(p.source, "combine");
  ZIPAGE_CHECK(p.out != nullptr && p.out != p.scores && p.out != p.redundancy, "combine: in place");
  const CompressionParams& c = p.params;
  const int num_slots = p.source.num_slots;
  Executor& executor = CpuBackend::executor(queue);
  for_each_head(executor, p.source, [&](int64_t task, int thread) {
    auto* positions =
        reinterpret_cast<int32_t*>(executor.scratch(thread, sizeof(int32_t) * static_cast<size_t>(num_slots)));
    if (c.random || c.protect_prompt) SourceHead(p.source, task).read_positions(positions);
    float* f = p.out + task * num_slots;
    const float* s = p.scores == nullptr ? nullptr : p.scores + task * num_slots;
    const float* r = p.redundancy == nullptr ? nullptr : p.redundancy + task * num_slots;
    if (c.combine == ScoreCombine::kLog && r != nullptr) {
      combine_log(c.lambda, s, r, num_slots, f);
    } else {
      combine_linear(c.lambda, s, r, num_slots, f);
    }
    if (c.random) {
      for (int t = 0; t < num_slots; ++t) {
        f[t] = hash_unit(c.random_seed, static_cast<uint64_t>(task), positions[t]);
      }
    }
    protect(p, positions, f);
  });
}

}  // namespace zipage::cpu
