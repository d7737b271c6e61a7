// Stage 3: maximum over neighbours, only over and for slots that no earlier compression has seen.
#include "ops/cuda/compress_source.cuh"

namespace zipage::cuda {
namespace {

// ---- numbers ----
constexpr int kThreads = 256;

// ---- kernels ----

__global__ void pool_scores_kernel(int num_slots, int num_scored, int reach, const float* scores, float* out) {
  wait_for_previous();
  const int t = blockIdx.x * kThreads + threadIdx.x;
  if (t >= num_slots) return;
  const float* s = scores + int64_t{blockIdx.y} * num_slots;
  float best = s[t];
  if (t >= num_scored) {
    for (int i = max(t - reach, num_scored); i <= min(t + reach, num_slots - 1); ++i) best = fmaxf(best, s[i]);
  }
  out[int64_t{blockIdx.y} * num_slots + t] = best;
}

}  // namespace

// ---- launcher ----

void pool_scores(const Launch& launch, const PoolScoresParams& p) {
  const Source source(p.source);
  const dim3 grid(ceil_div(source.num_slots, kThreads), source.num_units());
  run(launch, pool_scores_kernel, grid, kThreads, 0, source.num_slots, source.num_scored, p.width / 2, p.scores, p.out);
}

}  // namespace zipage::cuda
