// Stage 7: the best slots, exactly as many as the budget, in sequence order. One block a unit.
//
// The bound is found digit by digit from the top, by histograms in shared memory of keys in registers; then one walk in
// sequence order gives every kept slot its place.
#include "ops/cuda/compress_source.cuh"

namespace zipage::cuda {
namespace {

// ---- numbers ----
constexpr int kThreads = 512;
constexpr int kWarps = kThreads / kWarpSize;
constexpr int kDigitBits = 8, kDigits = 1 << kDigitBits;
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

struct Digit {
  unsigned digit;
  int above;  // keys with a higher digit
};

// The digit at which the counts, added up from the top, reach `wanted`.
__device__ Digit find_digit(const int* histogram, int wanted) {
  const int lane = threadIdx.x % kWarpSize;
  constexpr int kEach = kDigits / kWarpSize;  // bins a lane, from the top down
  int own = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) own += histogram[kDigits - 1 - lane * kEach - i];
  int sum = own;
#pragma unroll
  for (int offset = 1; offset < kWarpSize; offset <<= 1) {
    const int other = __shfl_up_sync(kFullMask, sum, offset);
    if (lane >= offset) sum += other;
  }
  const int holder = __ffs(__ballot_sync(kFullMask, sum >= wanted)) - 1;
  int above = sum - own, digit = kDigits - 1 - lane * kEach;
  for (int i = 0; i < kEach - 1 && above + histogram[digit] < wanted; ++i) above += histogram[digit--];
  return {static_cast<unsigned>(__shfl_sync(kFullMask, digit, holder)), __shfl_sync(kFullMask, above, holder)};
}

__global__ void __launch_bounds__(kThreads) select_kernel(const float* final_scores, int num_slots, int budget,
                                                          int block_size, bool whole_blocks, int32_t* kept) {
  wait_for_previous();
  extern __shared__ float block_values[];  // [ceil(num_slots / block_size)], for whole_blocks
  __shared__ int sums[kWarps], histogram[kDigits];
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
  const auto for_each_key = [&](auto&& f) {
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      if (threadIdx.x + i * kThreads < num_slots) f(own[i]);
    }
    for (int t = threadIdx.x + kOwn * kThreads; t < num_slots; t += kThreads) f(key(t));
  };

  // The largest bound that at least `budget` keys reach.
  uint32_t bound = 0;
  int wanted = budget, equal = 0;  // wanted of the keys that share the digits found so far; keys at the bound
  for (int shift = 32 - kDigitBits; shift >= 0; shift -= kDigitBits) {
    for (int i = threadIdx.x; i < kDigits; i += kThreads) histogram[i] = 0;
    __syncthreads();
    for_each_key([&](uint32_t k) {
      const bool inside = shift == 32 - kDigitBits || (k ^ bound) >> (shift + kDigitBits) == 0;
      if (inside) atomicAdd(&histogram[k >> shift & (kDigits - 1)], 1);
    });
    __syncthreads();
    const Digit found = find_digit(histogram, wanted);
    bound |= found.digit << shift;
    wanted -= found.above;
    equal = histogram[found.digit];
    __syncthreads();
  }
  // Of the slots at the bound the oldest go.
  const int too_many = equal - wanted;

  int32_t* out = kept + int64_t{blockIdx.x} * budget;
  int equal_before = 0, kept_before = 0;
  for (int base = 0; base < num_slots; base += kThreads) {
    const int t = base + threadIdx.x;
    const bool inside = t < num_slots;
    const uint32_t k = inside ? key(t) : 0;
    const bool at_bound = inside && k == bound;
    const Scan equals = block_scan(at_bound, sums);
    const bool keep = inside && (k > bound || (at_bound && equal_before + equals.before >= too_many));
    const Scan keeps = block_scan(keep, sums);
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
