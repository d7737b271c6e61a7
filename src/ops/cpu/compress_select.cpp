// Stage 7: the best slots, exactly as many as the budget.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "ops/cpu/compress_source.h"

namespace zipage::cpu {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

// An integer in the order of the float. -0 counts as 0, a NaN as worse than everything.
int32_t order_key(float f) {
  if (std::isnan(f)) return std::numeric_limits<int32_t>::min();
  const auto bits = std::bit_cast<int32_t>(f + 0.0F);
  return bits >= 0 ? bits : bits ^ 0x7fffffff;
}

// Gives every slot the mean of its block, protected slots +inf and their blocks' other slots the value right below.
void spread_over_blocks(const float* f, int num_slots, int block_size, float* out) {
  for (int begin = 0; begin < num_slots; begin += block_size) {
    const int end = std::min(begin + block_size, num_slots);
    const bool has_protected = std::find(f + begin, f + end, kInf) != f + end;
    float sum = 0;
    for (int t = begin; t < end; ++t) sum += f[t];
    const float value = has_protected ? std::numeric_limits<float>::max() : sum / static_cast<float>(end - begin);
    for (int t = begin; t < end; ++t) out[t] = f[t] == kInf ? kInf : value;
  }
}

// The largest key that at least `budget` of the keys reach, found bit by bit from the top.
int32_t budget_bound(const CompressKernels& kernels, const int32_t* keys, int n, int budget) {
  int64_t low = std::numeric_limits<int32_t>::min();  // reached by all
  int64_t high = int64_t{std::numeric_limits<int32_t>::max()} + 1;
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    (kernels.count_at_least(keys, n, static_cast<int32_t>(middle)) >= budget ? low : high) = middle;
  }
  return static_cast<int32_t>(low);
}

}  // namespace

void CpuBackend::select(Queue& queue, const SelectParams& p) {
  check_source(p.source, "select");
  const int num_slots = p.source.num_slots;
  ZIPAGE_CHECK(p.budget > 0 && p.budget <= num_slots, "select: {} of {} slots", p.budget, num_slots);
  const CompressKernels& kernels = compress_kernels(isa_);
  Executor& executor = CpuBackend::executor(queue);

  for_each_head(executor, p.source, [&](int64_t task, int thread) {
    const size_t n = static_cast<size_t>(num_slots);
    auto* keys = reinterpret_cast<int32_t*>(executor.scratch(thread, n * (sizeof(int32_t) + sizeof(float))));
    const float* f = p.final_scores + task * num_slots;
    if (p.whole_blocks) {
      auto* spread = reinterpret_cast<float*>(keys + n);
      spread_over_blocks(f, num_slots, p.source.kv.geometry.block_size, spread);
      f = spread;
    }
    for (int t = 0; t < num_slots; ++t) keys[t] = order_key(f[t]);
    const int32_t bound = budget_bound(kernels, keys, num_slots, p.budget);

    // Everything above the bound stays; of the slots at it, as many of the newest as there is room for.
    int too_many = kernels.count_at_least(keys, num_slots, bound) - p.budget;
    int32_t* kept = p.kept + task * p.budget;
    int count = 0;
    for (int t = 0; t < num_slots; ++t) {
      if (keys[t] < bound) continue;
      if (keys[t] == bound && too_many > 0) {
        --too_many;
        continue;
      }
      kept[count++] = t;
    }
    ZIPAGE_CHECK(count == p.budget, "C3: {} slots kept of a budget of {}", count, p.budget);
#ifdef ZIPAGE_DEBUG_CHECKS
    const float* final_scores = p.final_scores + task * num_slots;
    const auto kept_protected = std::count_if(kept, kept + count, [&](int t) { return final_scores[t] == kInf; });
    const auto all_protected = std::count(final_scores, final_scores + num_slots, kInf);
    ZIPAGE_CHECK(kept_protected == std::min<int64_t>(all_protected, p.budget),
                 "C4: a protected slot of head {} is dropped", task);
#endif
  });
}

}  // namespace zipage::cpu
