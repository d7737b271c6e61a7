// Stage 2: what earlier compressions thought of a slot.
#include <algorithm>

#include "ops/cpu/compress_source.h"

namespace zipage::cpu {

void CpuBackend::carry(Queue& queue, const CarryParams& p) {
  check_source(p.source, "carry");
  ZIPAGE_CHECK(p.source.kv.scores != nullptr || p.source.num_scored == 0, "carry: a pool without scores");
  if (p.carry == ScoreCarry::kOff || p.source.num_scored == 0) return;
  for_each_head(executor(queue), p.source, [&](int64_t task, int) {
    const SourceHead head(p.source, task);
    float* s = p.scores + task * p.source.num_slots;
    for (int t = 0; t < p.source.num_scored; ++t) {
      const float before = p.decay * head.view().scores(head.block(t), head.head())[head.slot(t)];
      s[t] = p.carry == ScoreCarry::kMax ? std::max(s[t], before) : s[t] + before;
    }
  });
}

}  // namespace zipage::cpu
