// Between stages 1 and 2: attention moves values, so a slot counts by how long its value is too.
#include "ops/cpu/compress_source.h"

namespace zipage::cpu {

void CpuBackend::value_norms(Queue& queue, const ValueNormsParams& p) {
  check_source(p.source, "value_norms");
  const int head_dim = p.source.kv.geometry.head_dim;
  const int num_slots = p.source.num_slots;
  const CompressKernels& kernels = compress_kernels(isa_);
  Executor& executor = CpuBackend::executor(queue);
  for_each_head(executor, p.source, [&](int64_t task, int thread) {
    auto* norms = reinterpret_cast<float*>(executor.scratch(thread, sizeof(float) * static_cast<size_t>(num_slots)));
    const SourceHead head(p.source, task);
    head.for_each_block(num_slots, [&](int begin, int end, int block) {
      const auto* rows = reinterpret_cast<const uint16_t*>(head.view().values(block, head.head()));
      kernels.row_norms(rows, end - begin, head_dim, norms + begin);
    });
    float sum = 0;
    for (int t = 0; t < num_slots; ++t) sum += norms[t];
    const float scale = sum > 0 ? static_cast<float>(num_slots) / sum : 0.0F;
    float* a = p.scores + task * num_slots;
    for (int t = 0; t < num_slots; ++t) a[t] *= norms[t] * scale;
  });
}

}  // namespace zipage::cpu
