// Stage 4: how much of a slot's key others say as well. The kernel's sections follow the README of src/compress.
#include "ops/cpu/compress_source.h"

namespace zipage::cpu {
namespace {

constexpr int kLightningChunk = 256;

}  // namespace

void CpuBackend::redundancy(Queue& queue, const RedundancyParams& p) {
  check_source(p.source, "redundancy");
  const KvGeometry& g = p.source.kv.geometry;
  const bool content = p.keys == RedundancyKeys::kContent;
  ZIPAGE_CHECK(p.scope != RedundancyScope::kOff && p.redundancy != nullptr, "redundancy: nothing to compute");
  ZIPAGE_CHECK(
      !content || (p.cos_sin != nullptr && p.rotary_dim > 0 && p.rotary_dim % 2 == 0 && p.rotary_dim <= g.head_dim),
      "redundancy: content keys need the rotation table (rotary size {}, head size {})", p.rotary_dim, g.head_dim);
  ZIPAGE_CHECK(p.temperature > 0 && p.threshold >= 0, "redundancy: temperature {}, threshold {}", p.temperature,
               p.threshold);
  const int num_slots = p.source.num_slots;
  const CompressKernels& kernels = compress_kernels(isa_);
  Executor& executor = CpuBackend::executor(queue);

  for_each_head(executor, p.source, [&](int64_t task, int thread) {
    std::byte* memory =
        executor.scratch(thread, head_keys_bytes(p.source) + redundancy_scratch_bytes(num_slots, g.head_dim));
    const auto [keys, rest] = fill_head_keys(p.source, SourceHead(p.source, task), memory);
    kernels.redundancy({.keys = keys,
                        .cos_sin = content ? p.cos_sin : nullptr,
                        .rotary_dim = p.rotary_dim,
                        .chunk = p.scope == RedundancyScope::kLightning ? kLightningChunk : ceil16(num_slots),
                        .skip_last = p.scope != RedundancyScope::kMean,
                        .threshold = p.threshold,
                        .temperature = p.temperature,
                        .scratch = rest,
                        .out = p.redundancy + task * num_slots});
  });
}

}  // namespace zipage::cpu
