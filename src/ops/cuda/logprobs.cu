// Log-probabilities of raw logits: one block a row, one pass for the normaliser and the rank, one pass a listed token.
#include "ops/cuda/device.cuh"
#include "ops/cuda/launch.h"

namespace zipage::cuda {
namespace {

// ---- numbers ----
constexpr int kThreads = 1024;
constexpr int kAhead = 8;  // logits of a thread on their way

struct Args {
  const float* logits;
  int64_t stride;
  int vocab, top_n;
  const int32_t* chosen;
  float* out_chosen;
  int32_t* out_rank;
  int32_t* out_top_ids;
  float* out_top;
};

// ---- kernels ----

__device__ float finite(float x) {
  return isfinite(x) ? x : -INFINITY;
}

// Greater value first, then lower id.
struct Best {
  float value;
  int id;
  __device__ bool operator<(const Best& other) const {
    return value < other.value || (value == other.value && id > other.id);
  }
};

__device__ Best block_best(Best v, Best* shared) {
  const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
  const auto reduce = [&] {
#pragma unroll
    for (int offset = 16; offset > 0; offset >>= 1) {
      const Best other{__shfl_xor_sync(kFullMask, v.value, offset), __shfl_xor_sync(kFullMask, v.id, offset)};
      if (v < other) v = other;
    }
  };
  reduce();
  __syncthreads();
  if (lane == 0) shared[warp] = v;
  __syncthreads();
  v = shared[lane % (kThreads / kWarpSize)];
  reduce();
  return v;
}

__global__ void __launch_bounds__(kThreads) logprobs_kernel(const Args a) {
  wait_for_previous();
  __shared__ float sums[kWarpSize];
  __shared__ Best bests[kWarpSize];
  const int64_t row = blockIdx.x;
  const float* logits = a.logits + row * a.stride;
  const int chosen = a.chosen != nullptr && a.chosen[row] < a.vocab ? a.chosen[row] : -1;
  const float own = chosen >= 0 ? finite(logits[chosen]) : 0.0F;

  float maximum = -INFINITY, sum = 0.0F;
  int above = 0;
  const auto take = [&](int i, float x) {
    above += x > own || (x == own && i < chosen);
    if (x == -INFINITY) return;
    if (x > maximum) {
      sum *= exp2_fast((maximum - x) * kLog2e);
      maximum = x;
    }
    sum += exp2_fast((x - maximum) * kLog2e);
  };
  for (int first = threadIdx.x; first < a.vocab; first += kAhead * kThreads) {
    float ahead[kAhead];
#pragma unroll
    for (int u = 0; u < kAhead; ++u)
      ahead[u] = first + u * kThreads < a.vocab ? logits[first + u * kThreads] : -INFINITY;
#pragma unroll
    for (int u = 0; u < kAhead; ++u) {
      if (first + u * kThreads < a.vocab) take(first + u * kThreads, finite(ahead[u]));
    }
  }
  const float top = block_reduce<Max>(maximum, sums);
  sum = block_reduce<Sum>(maximum == -INFINITY ? 0.0F : sum * exp2_fast((maximum - top) * kLog2e), sums);
  const float rank = block_reduce<Sum>(static_cast<float>(above), sums);  // exact below 2^24
  const float normaliser = top + logf(sum);
  const auto logprob = [&](float x) { return x == -INFINITY ? x : x - normaliser; };
  if (threadIdx.x == 0 && chosen >= 0) {
    if (a.out_chosen != nullptr) a.out_chosen[row] = logprob(own);
    if (a.out_rank != nullptr) a.out_rank[row] = 1 + static_cast<int>(rank);
  }

  Best last{INFINITY, -1};
  for (int n = 0; n < a.top_n; ++n) {
    Best best{-INFINITY, a.vocab};
    for (int i = threadIdx.x; i < a.vocab; i += kThreads) {
      const Best candidate{finite(logits[i]), i};
      if (candidate < last && best < candidate) best = candidate;
    }
    last = block_best(best, bests);
    if (threadIdx.x == 0) {
      a.out_top_ids[row * a.top_n + n] = last.id;
      a.out_top[row * a.top_n + n] = logprob(last.value);
    }
  }
}

}  // namespace

// ---- launcher ----

void logprobs(const Launch& launch, const LogprobsParams& p) {
  const Args a{static_cast<const float*>(p.logits.data),
               p.logits.stride,
               p.vocab,
               p.top_n,
               p.chosen,
               p.out_chosen,
               p.out_rank,
               p.out_top_ids,
               p.out_top};
  run(launch, logprobs_kernel, p.logits.rows, kThreads, 0, a);
}

}  // namespace zipage::cuda
