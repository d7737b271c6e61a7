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
    head.for_each_block(p.source.num_scored, [&](int begin, int end, int block) {
      const float* before = head.view().scores(block, head.head());
      for (int t = begin; t < end; ++t) {
        const float decayed = p.decay * before[t - begin];
        s[t] = p.carry == ScoreCarry::kMax ? std::max(s[t], decayed) : s[t] + decayed;
      }
    });
  });
}

}  // namespace zipage::cpu
