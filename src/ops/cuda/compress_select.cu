// Stage 7: the best slots, exactly as many as the budget, in sequence order. One block a unit.
//
// Slots are in the order of their keys and, of equal ones, of their numbers, so no two are equal. The last one that
// stays is found digit by digit from the top, by histograms in shared memory of keys in registers, until all slots that
// share its digits stay or so few share them that they are compared one by one; then counts in sequence order give
// every kept slot its place.
#include "ops/cuda/compress_source.cuh"

namespace zipage::cuda {
namespace {

// ---- numbers ----
constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarpSize;
constexpr int kMaxBlocks = 3;  // of a multiprocessor: the units of most models run at once
constexpr int kDigitBits = 8, kDigits = 1 << kDigitBits;
constexpr int kPasses = 2 * 32 / kDigitBits;  // over a key's digits, then over a slot's
constexpr int kFew = kWarpSize;
constexpr int kMostOwn = 16;  // keys that a thread keeps; longer sequences are read again for every count

// ---- kernels ----

constexpr uint32_t kPastEnd = 0, kNaN = 1, kProtected = 0xff800000U;

// An unsigned integer in the order of the float. -0 counts as 0, a NaN as worse than everything.
__device__ __forceinline__ uint32_t order_key(float f) {
  const uint32_t bits = __float_as_uint(f + 0.0F);
  const uint32_t sign = static_cast<uint32_t>(static_cast<int32_t>(bits) >> 31);
  return isnan(f) ? kNaN : bits ^ (sign | 0x80000000U);
}

__device__ __forceinline__ uint64_t rank(uint32_t key, uint32_t slot) {
  return uint64_t{key} << 32 | slot;
}

// Of kWidth lanes each, v with those of all lanes below.
template <int kWidth>
__device__ __forceinline__ int add_up(int v) {
#pragma unroll
  for (int offset = 1; offset < kWidth; offset <<= 1) {
    asm volatile(
        "{\n"
        ".reg .pred has_other;\n"
        ".reg .s32 other;\n"
        "shfl.sync.up.b32 other|has_other, %0, %1, %2, 0xffffffff;\n"
        "@has_other add.s32 %0, %0, other;\n"
        "}\n"
        : "+r"(v)
        : "r"(offset), "n"((kWarpSize - kWidth) << 8));
  }
  return v;
}

struct Digit {
  unsigned digit;
  int above, equal;  // slots with a higher digit, with this one
};

// The digit at which the counts, added up from the top, reach `wanted`. By every warp for itself.
__device__ __forceinline__ Digit find_digit(const int* histogram, int wanted) {
  const int lane = threadIdx.x % kWarpSize;
  constexpr int kEach = kDigits / kWarpSize;  // bins a lane, from the top down
  static_assert(kEach == 8);
  const int4 *lowest = reinterpret_cast<const int4*>(histogram) + 2 * (kWarpSize - 1 - lane), low = lowest[0],
             high = lowest[1];
  const int own = low.x + low.y + low.z + low.w + high.x + high.y + high.z + high.w;
  const int sum = add_up<kWarpSize>(own);
  const int holder = __popc(__ballot_sync(kFullMask, sum < wanted));
  const int before = __shfl_sync(kFullMask, sum - own, holder);
  const int top = kDigits - 1 - holder * kEach;
  const int bin = histogram[top - lane % kEach];
  const int above = before + add_up<kEach>(bin) - bin;
  const int skipped = __popc(__ballot_sync(kFullMask, above + bin < wanted) & ((1U << kEach) - 1));
  return {static_cast<unsigned>(top - skipped), __shfl_sync(kFullMask, above, skipped),
          __shfl_sync(kFullMask, bin, skipped)};
}

// By all threads; they have to wait for each other before they read them.
__device__ __forceinline__ void find_block_values(const float* f, int num_slots, int block_size, float* block_values) {
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
}

// Of any sequence, with whole blocks or not, if kAny; else of such that threads keep their keys, which are all that
// counts.
template <int kOwn, bool kAny>
__global__ void __launch_bounds__(kThreads, kMaxBlocks)
    select_kernel(const float* final_scores, int num_slots, int budget, int block_size, bool whole_blocks,
                  int32_t* kept) {
  let_next_start();
  extern __shared__ float block_values[];  // [ceil(num_slots / block_size)], for whole_blocks
  __shared__ __align__(16) int histograms[kPasses][kDigits];
  __shared__ uint64_t few[kFew];
  __shared__ unsigned num_few;
  __shared__ int counts[kWarps];
  const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
#pragma unroll
  for (int i = 0; i < kPasses * kDigits / 4; i += kThreads) {
    reinterpret_cast<int4*>(histograms)[i + threadIdx.x] = make_int4(0, 0, 0, 0);
  }
  if (threadIdx.x == 0) num_few = 0;
  // Kept in registers so: the compiler would find them anew, in several instructions each, wherever they are needed.
  uint32_t histogram = shared_address(histograms);
  unsigned lower = (1U << lane) - 1;
  int32_t* out = kept + int64_t{blockIdx.x} * budget;
  asm volatile("" : "+r"(histogram), "+r"(lower), "+l"(out));
  __builtin_assume(__isGlobal(out));
  wait_till_previous_ended();

  const float* f = final_scores + int64_t{blockIdx.x} * num_slots;
  if (kAny && whole_blocks) find_block_values(f, num_slots, block_size, block_values);
  __syncthreads();

  // A stretch of the sequence at a time, in it a warp has kOwn times 32 slots one after the other.
  constexpr int kStretch = kOwn * kThreads;
  const int num_stretches = kAny ? ceil_div(num_slots, kStretch) : 1;
  const auto slot = [&](int stretch, int i) { return stretch * kStretch + (warp * kOwn + i) * kWarpSize + lane; };
  uint32_t keys[kOwn];
  const auto read_keys = [&](int stretch) {
    float values[kOwn];
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const int t = slot(stretch, i);
      values[i] = t < num_slots ? f[t] : 0.0F;
      if (kAny && whole_blocks && t < num_slots && values[i] != INFINITY) values[i] = block_values[t / block_size];
    }
#pragma unroll
    for (int i = 0; i < kOwn; ++i) keys[i] = slot(stretch, i) < num_slots ? order_key(values[i]) : kPastEnd;
  };
  const auto for_each_slot = [&](const auto& visit) {
    for (int stretch = 0; stretch < num_stretches; ++stretch) {
      if (kAny) read_keys(stretch);
#pragma unroll
      for (int i = 0; i < kOwn; ++i) visit(keys[i], static_cast<uint32_t>(slot(stretch, i)));
    }
  };
  if (!kAny) read_keys(0);

  // The last slot to stay, as far as its digits are known: its key, its number.
  uint32_t bound = 0, bound_slot = 0;
  int wanted = budget, equal = 0;  // wanted of the slots that share the digits found so far, and how many these are
  int pass = 0;
  const auto count = [&](uint32_t digit, bool shares) {
    if (shares) asm volatile("red.shared.add.u32 [%0], 1;\n" ::"r"(histogram + digit * 4) : "memory");
  };
  const auto find_next = [&](uint32_t& digits, int shift) {
    __syncthreads();
    const Digit found = find_digit(histograms[pass++], wanted);
    digits |= found.digit << shift;
    wanted -= found.above;
    equal = found.equal;
    histogram += kDigits * sizeof(int);
  };
  // Most slots are protected: a warp counts rows of them at once.
  int protected_rows = 0, shift = 32 - kDigitBits;
  for_each_slot([&](uint32_t key, uint32_t) {
    const bool together = __all_sync(kFullMask, key == kProtected);
    count(key >> shift, !together);
    protected_rows += together ? 1 : 0;
  });
  if (lane == 0) atomicAdd(&histograms[0][kProtected >> shift], protected_rows * kWarpSize);
  find_next(bound, shift);
  while (equal != wanted && equal > kFew && shift > 0) {
    shift -= kDigitBits;
    for_each_slot([&](uint32_t key, uint32_t) {
      const uint32_t digit = (key - bound) >> shift;
      count(digit, digit < kDigits);
    });
    find_next(bound, shift);
  }
  if (equal != wanted && equal <= kFew) {
    for_each_slot([&](uint32_t key, uint32_t t) {
      if (key - bound < 1U << shift) few[atomicInc(&num_few, kFew)] = rank(key, t);
    });
    __syncthreads();
    const uint64_t own = few[lane];
    int better = 0;
#pragma unroll 1
    for (int i = 0; i < equal; ++i) better += few[i] > own ? 1 : 0;
    const unsigned last = __ballot_sync(kFullMask, lane < equal && better == wanted - 1);
    const uint64_t found = few[__ffs(static_cast<int>(last)) - 1];
    bound = static_cast<uint32_t>(found >> 32), bound_slot = static_cast<uint32_t>(found);
  } else if (equal != wanted) {  // so many share a key
    shift = (31 - __clz(num_slots)) / kDigitBits * kDigitBits;
    for (; equal != wanted; shift -= kDigitBits) {
      for_each_slot([&](uint32_t key, uint32_t t) {
        const uint32_t digit = (t - bound_slot) >> shift;
        count(digit, key == bound && digit < kDigits);
      });
      find_next(bound_slot, shift);
    }
  }
  const uint64_t least = rank(bound, bound_slot);

  int place = 0;  // of the stretch's first slot that stays
  for (int stretch = 0; stretch < num_stretches; ++stretch) {
    if (kAny) read_keys(stretch);
    unsigned stay[kOwn];
    int own_count = 0;
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      stay[i] = __ballot_sync(kFullMask, rank(keys[i], slot(stretch, i)) >= least);
      own_count += __popc(stay[i]);
    }
    if (kAny) __syncthreads();
    if (lane == 0) counts[warp] = own_count;
    __syncthreads();
    const int of_warp = lane < kWarps ? counts[lane] : 0;
    int next = place + __reduce_add_sync(kFullMask, lane < warp ? of_warp : 0);
    if (kAny) place += __reduce_add_sync(kFullMask, of_warp);
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      if ((stay[i] >> lane & 1U) != 0) out[next + __popc(stay[i] & lower)] = slot(stretch, i);
      next += __popc(stay[i]);
    }
  }
}

}  // namespace

// ---- launcher ----

void select(const Launch& launch, const SelectParams& p) {
  const Source source(p.source);
  const int num_slots = source.num_slots, block_size = source.kv.block_size;
  const int bytes = p.whole_blocks ? ceil_div(num_slots, block_size) * static_cast<int>(sizeof(float)) : 0;
  const auto start = [&](auto kernel) {
    run(launch, kernel, source.num_units(), kThreads, bytes, p.final_scores, num_slots, p.budget, block_size,
        p.whole_blocks, p.kept);
  };
  if (p.whole_blocks || num_slots > kMostOwn * kThreads) return start(select_kernel<4, true>);
  dispatch<3, 6, 9, 12, kMostOwn>(ceil_div(num_slots, 3 * kThreads) * 3,
                                  [&]<int kOwn>() { start(select_kernel<kOwn, false>); });
}

}  // namespace zipage::cuda
