// Stage 7: the best slots, exactly as many as the budget, in sequence order. One block a unit.
//
// The bound is found bit by bit from the top, by 32 counts over keys in registers; then one walk in sequence order
// gives every kept slot its place.
#include "ops/cuda/compress_source.cuh"

namespace zipage::cuda {
namespace {

// ---- numbers ----
constexpr int kThreads = 512;
constexpr int kWarps = kThreads / kWarpSize;
constexpr int kOwn = 8;  // keys a thread keeps; longer sequences are read again for every count

// ---- kernels ----

// An unsigned integer in the order of the float. -0 counts as 0, a NaN as worse than everything.
__device__ uint32_t order_key(float f) {
  if (isnan(f)) return 0;
  const uint32_t bits = __float_as_uint(f + 0.0F);
  return bits & 0x80000000U ? ~bits : bits | 0x80000000U;
}

struct Scan {
  int before;  // of lower threads
  int total;
};

__device__ Scan block_scan(bool flag, int* shared) {
  const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
  const unsigned votes = __ballot_sync(kFullMask, flag);
  __syncthreads();
  if (lane == 0) shared[warp] = __popc(votes);
  __syncthreads();
  int before = 0, total = 0;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) {
    before += w < warp ? shared[w] : 0;
    total += shared[w];
  }
  return {before + __popc(votes & ((1U << lane) - 1U)), total};
}

// Two buffers in turn, so that one barrier a sum is enough.
__device__ int block_sum(int v, int (*shared)[kWarps], int round) {
  const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
  v = __reduce_add_sync(kFullMask, v);
  if (lane == 0) shared[round & 1][warp] = v;
  __syncthreads();
  return __reduce_add_sync(kFullMask, lane < kWarps ? shared[round & 1][lane] : 0);
}

__global__ void __launch_bounds__(kThreads) select_kernel(const float* final_scores, int num_slots, int budget,
                                                          int block_size, bool whole_blocks, int32_t* kept) {
  wait_for_previous();
  extern __shared__ float block_values[];  // [ceil(num_slots / block_size)], for whole_blocks
  __shared__ int sums[2][kWarps];
  const float* f = final_scores + int64_t{blockIdx.x} * num_slots;
  if (whole_blocks) {
    for (int block = threadIdx.x; block * block_size < num_slots; block += kThreads) {
      const int begin = block * block_size, end = min(begin + block_size, num_slots);
      bool has_protected = false;
      float sum = 0.0F;
      for (int t = begin; t < end; ++t) {
        has_protected |= f[t] == INFINITY;
        sum += f[t];
      }
      constexpr float kRightBelowProtected = 3.402823466e+38F;
      block_values[block] = has_protected ? kRightBelowProtected : sum / static_cast<float>(end - begin);
    }
    __syncthreads();
  }
  const auto key = [&](int t) {
    const float own = f[t];
    return order_key(whole_blocks && own != INFINITY ? block_values[t / block_size] : own);
  };
  uint32_t own[kOwn];
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    const int t = threadIdx.x + i * kThreads;
    own[i] = t < num_slots ? key(t) : 0;
  }
  const auto count_reaching = [&](uint32_t bound) {  // bound > 0
    int count = 0;
#pragma unroll
    for (int i = 0; i < kOwn; ++i) count += own[i] >= bound;
    for (int t = threadIdx.x + kOwn * kThreads; t < num_slots; t += kThreads) count += key(t) >= bound;
    return count;
  };

  // The largest bound that at least `budget` keys reach; 0 is reached by all.
  uint32_t bound = 0;
  int reached = num_slots;
  for (int bit = 31; bit >= 0; --bit) {
    const uint32_t higher = bound | 1U << bit;
    const int count = block_sum(count_reaching(higher), sums, bit);
    if (count < budget) continue;
    bound = higher;
    reached = count;
  }
  // Of the slots at the bound the oldest go.
  const int too_many = reached - budget;

  int32_t* out = kept + int64_t{blockIdx.x} * budget;
  int equal_before = 0, kept_before = 0;
  for (int base = 0; base < num_slots; base += kThreads) {
    const int t = base + threadIdx.x;
    const bool inside = t < num_slots;
    const uint32_t k = inside ? key(t) : 0;
    const bool equal = inside && k == bound;
    const Scan equals = block_scan(equal, sums[0]);
    const bool keep = inside && (k > bound || (equal && equal_before + equals.before >= too_many));
    const Scan keeps = block_scan(keep, sums[0]);
    if (keep) out[kept_before + keeps.before] = t;
    equal_before += equals.total;
    kept_before += keeps.total;
  }
}

}  // namespace

// ---- launcher ----

void select(const Launch& launch, const SelectParams& p) {
  const Source source(p.source);
  const int bytes =
      p.whole_blocks ? ceil_div(source.num_slots, source.kv.block_size) * static_cast<int>(sizeof(float)) : 0;
  run(launch, select_kernel, source.num_units(), kThreads, bytes, p.final_scores, source.num_slots, p.budget,
      source.kv.block_size, p.whole_blocks, p.kept);
}

}  // namespace zipage::cuda
