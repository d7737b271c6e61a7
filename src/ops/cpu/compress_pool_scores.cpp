// Stage 3: a new slot is worth what its best new neighbour is worth.
#include <algorithm>

#include "ops/cpu/compress_source.h"

namespace zipage::cpu {

void CpuBackend::pool_scores(Queue& queue, const PoolScoresParams& p) {
  check_source(p.source, "pool_scores");
  ZIPAGE_CHECK(p.width >= 1 && p.width % 2 == 1, "pool_scores: width {} must be odd", p.width);
  ZIPAGE_CHECK(p.scores != p.out, "pool_scores: in place");
  const int num_slots = p.source.num_slots;
  const int first = p.source.num_scored;
  const int reach = p.width / 2;
  for_each_head(executor(queue), p.source, [&](int64_t task, int) {
    const float* s = p.scores + task * num_slots;
    float* out = p.out + task * num_slots;
    std::copy_n(s, num_slots, out);
    for (int offset = 1; offset <= reach; ++offset) {
      for (int t = first; t < num_slots - offset; ++t) out[t] = std::max(out[t], s[t + offset]);
      for (int t = first + offset; t < num_slots; ++t) out[t] = std::max(out[t], s[t - offset]);
    }
  });
}

}  // namespace zipage::cpu
