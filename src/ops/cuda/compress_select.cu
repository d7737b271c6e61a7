// Stage 7: the best slots, exactly as many as the budget, in sequence order. One block a unit.
//
// The bound is found digit by digit from the top, by histograms in shared memory of keys in registers, until all that
// share its digits stay; then counts in sequence order give every kept slot its place.
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

// Adds a warp's digits to the histogram; those of the first lanes that differ at once, since most keys of a sequence
// share their highest digits. All lanes of the warp call it.
__device__ __forceinline__ void count_digits(int* histogram, unsigned digit, bool inside) {
  const int lane = threadIdx.x % kWarpSize;
  unsigned left = __ballot_sync(kFullMask, inside);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if (left == 0) return;
    const int speaker = __ffs(static_cast<int>(left)) - 1;
    const unsigned same = __ballot_sync(kFullMask, digit == __shfl_sync(kFullMask, digit, speaker)) & left;
    if (lane == speaker) atomicAdd(&histogram[digit], __popc(same));
    left &= ~same;
  }
  if ((left >> lane & 1U) != 0) atomicAdd(&histogram[digit], 1);
}

struct Counts {
  int above, at_bound;
};

// By a warp: of every warp's slots in a stretch, in sequence order, how many came before; the last is the total.
__device__ __forceinline__ void add_up(Counts (&counts)[kOwn * kWarps + 1]) {
  constexpr int kEach = kOwn * kWarps / kWarpSize;
  const int lane = threadIdx.x % kWarpSize;
  Counts own[kEach], sum{};
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    own[i] = counts[lane * kEach + i];
    sum.above += own[i].above, sum.at_bound += own[i].at_bound;
  }
  Counts before = sum;
#pragma unroll
  for (int offset = 1; offset < kWarpSize; offset <<= 1) {
    const int above = __shfl_up_sync(kFullMask, before.above, offset);
    const int at_bound = __shfl_up_sync(kFullMask, before.at_bound, offset);
    if (lane >= offset) before.above += above, before.at_bound += at_bound;
  }
  if (lane == kWarpSize - 1) counts[kOwn * kWarps] = before;
  before.above -= sum.above, before.at_bound -= sum.at_bound;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    counts[lane * kEach + i] = before;
    before.above += own[i].above, before.at_bound += own[i].at_bound;
  }
}

struct Digit {
  unsigned digit;
  int above, equal;  // keys with a higher digit, with this one
};

// The digit at which the counts, added up from the top, reach `wanted`.
__device__ Digit find_digit(const int* histogram, int wanted) {
  const int lane = threadIdx.x % kWarpSize;
  constexpr int kEach = kDigits / kWarpSize;  // bins a lane, from the top down
  static_assert(kEach == 8);
  const int4 *lowest = reinterpret_cast<const int4*>(histogram) + 2 * (kWarpSize - 1 - lane), low = lowest[0],
             high = lowest[1];
  const int bins[kEach] = {high.w, high.z, high.y, high.x, low.w, low.z, low.y, low.x};
  int own = 0;
#pragma unroll
  for (const int bin : bins) own += bin;
  int sum = own;
#pragma unroll
  for (int offset = 1; offset < kWarpSize; offset <<= 1) {
    const int other = __shfl_up_sync(kFullMask, sum, offset);
    if (lane >= offset) sum += other;
  }
  const int holder = __ffs(static_cast<int>(__ballot_sync(kFullMask, sum >= wanted))) - 1;
  int above = sum - own, skipped = 0, equal = 0;
  bool open = true;
#pragma unroll
  for (const int bin : bins) {
    if (open) equal = bin;
    open = open && above + bin < wanted;
    if (open) above += bin, ++skipped;
  }
  return {static_cast<unsigned>(__shfl_sync(kFullMask, kDigits - 1 - lane * kEach - skipped, holder)),
          __shfl_sync(kFullMask, above, holder), __shfl_sync(kFullMask, equal, holder)};
}

__global__ void __launch_bounds__(kThreads) select_kernel(const float* final_scores, int num_slots, int budget,
                                                          int block_size, bool whole_blocks, int32_t* kept) {
  wait_for_previous();
  extern __shared__ float block_values[];  // [ceil(num_slots / block_size)], for whole_blocks
  __shared__ Counts counts[kOwn * kWarps + 1];
  __shared__ __align__(16) int histogram[kDigits];
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
  uint32_t keys[kOwn];
  const auto read_keys = [&](int base) {
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const int t = base + i * kThreads + threadIdx.x;
      keys[i] = t < num_slots ? key(t) : 0;
    }
  };

  // The largest bound that at least `budget` keys reach.
  uint32_t bound = 0;
  int wanted = budget, equal = 0;  // wanted of the keys that share the digits found so far; keys at the bound
  for (int shift = 32 - kDigitBits; shift >= 0 && equal != wanted; shift -= kDigitBits) {
    for (int i = threadIdx.x; i < kDigits; i += kThreads) histogram[i] = 0;
    __syncthreads();
    for (int base = 0; base < num_slots; base += kOwn * kThreads) {
      if (base > 0 || shift == 32 - kDigitBits || num_slots > kOwn * kThreads) read_keys(base);
#pragma unroll
      for (int i = 0; i < kOwn; ++i) {
        const int first = base + i * kThreads;
        if (first >= num_slots) break;
        const bool shares = shift == 32 - kDigitBits || (keys[i] ^ bound) >> (shift + kDigitBits) == 0;
        count_digits(histogram, keys[i] >> shift & (kDigits - 1),
                     shares && first + static_cast<int>(threadIdx.x) < num_slots);
      }
    }
    __syncthreads();
    const Digit found = find_digit(histogram, wanted);
    bound |= found.digit << shift;
    wanted -= found.above;
    equal = found.equal;
    __syncthreads();
  }
  // Of the slots at the bound the oldest go. Where all that share the digits found stay, the bound lies below them.
  const int too_many = equal - wanted;

  int32_t* out = kept + int64_t{blockIdx.x} * budget;
  const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
  const unsigned lower = (1U << lane) - 1;
  int above_before = 0, equal_before = 0;
  for (int base = 0; base < num_slots; base += kOwn * kThreads) {
    if (num_slots > kOwn * kThreads) read_keys(base);
    unsigned above[kOwn], at_bound[kOwn];
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const bool inside = base + i * kThreads + static_cast<int>(threadIdx.x) < num_slots;
      above[i] = __ballot_sync(kFullMask, inside && keys[i] > bound);
      at_bound[i] = __ballot_sync(kFullMask, inside && keys[i] == bound);
      if (lane == 0) counts[i * kWarps + warp] = {__popc(above[i]), __popc(at_bound[i])};
    }
    __syncthreads();
    if (warp == 0) add_up(counts);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const Counts before = counts[i * kWarps + warp];
      const int equals = equal_before + before.at_bound + __popc(at_bound[i] & lower);
      const int place = above_before + before.above + __popc(above[i] & lower) + max(equals - too_many, 0);
      const bool stays = (above[i] >> lane & 1U) != 0 || ((at_bound[i] >> lane & 1U) != 0 && equals >= too_many);
      if (stays) out[place] = base + i * kThreads + threadIdx.x;
    }
    above_before += counts[kOwn * kWarps].above, equal_before += counts[kOwn * kWarps].at_bound;
    __syncthreads();
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
