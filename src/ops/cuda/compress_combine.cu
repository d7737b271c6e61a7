// Stages 5 and 6: one number per slot, and what may not go whatever its number.
#include "ops/cuda/compress_combine.cuh"

namespace zipage::cuda {
namespace {

// ---- numbers ----
constexpr int kThreads = 256;

// ---- kernels ----

__global__ void combine_kernel(const __grid_constant__ Combine a, const float* scores, const float* redundancy,
                               float* out) {
  wait_for_previous();
  const int t = blockIdx.x * kThreads + threadIdx.x, unit = blockIdx.y, num_slots = a.source.num_slots;
  if (t >= num_slots) return;
  const int64_t i = int64_t{unit} * num_slots + t;
  out[i] = a.final_score(unit, t, scores != nullptr ? scores[i] : 0.0F, redundancy != nullptr ? redundancy[i] : 0.0F);
}

}  // namespace

// ---- launcher ----

Combine::Combine(const CombineParams& p)
    : source(p.source),
      has_redundancy(p.redundancy != nullptr),
      combine(p.params.combine),
      lambda(p.params.lambda),
      sinks(p.params.sinks),
      newest(p.params.newest_kept()),
      prompt_len(p.params.protect_prompt ? p.source.prompt_len : 0),
      random(p.params.random),
      seed(p.params.random_seed) {
  const bool whole = prompt_len <= p.params.budget / 2;
  head_end = whole ? prompt_len : p.params.budget / 4;
  tail_begin = whole ? prompt_len : prompt_len - p.params.budget / 4;
}

void combine(const Launch& launch, const CombineParams& p) {
  const Combine a(p);
  const dim3 grid(ceil_div(p.source.num_slots, kThreads), a.source.num_units());
  run(launch, combine_kernel, grid, kThreads, 0, a, p.scores, p.redundancy, p.out);
}

}  // namespace zipage::cuda
