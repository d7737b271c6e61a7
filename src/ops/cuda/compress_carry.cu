// Stage 2: S[t] = max(A[t], decay * S_prev[t]), or the sum, for slots that an earlier compression kept.
#include "ops/cuda/compress_source.cuh"

namespace zipage::cuda {
namespace {

// ---- numbers ----
constexpr int kThreads = 256;

// ---- kernels ----

__global__ void carry_kernel(const __grid_constant__ Source source, ScoreCarry mode, float decay, float* scores) {
  wait_for_previous();
  const int t = blockIdx.x * kThreads + threadIdx.x, unit = blockIdx.y;
  if (t >= source.num_scored) return;
  float& s = scores[int64_t{unit} * source.num_slots + t];
  const float before = decay * source.scores[source.index(unit, t)];
  s = mode == ScoreCarry::kMax ? fmaxf(s, before) : s + before;
}

}  // namespace

// ---- launcher ----

void carry(const Launch& launch, const CarryParams& p) {
  const Source source(p.source);
  const dim3 grid(ceil_div(source.num_scored, kThreads), source.num_units());
  run(launch, carry_kernel, grid, kThreads, 0, source, p.carry, p.decay, p.scores);
}

}  // namespace zipage::cuda
