// Stage 4 for scope lightning: nothing leaves its chunk of slots, so a block of threads reads a chunk's keys (heads of
// 256 elements twice) and does it all: 1/|k|, u, R[m] = k^[m] . u in fp32, and the search, over k^ in half precision in
// shared memory. On Hopper, keys as they lie in the cache go by compress_redundancy_lightning_hopper.cu.
#include "ops/cuda/compress_redundancy.h"
#include "ops/cuda/compress_redundancy_search.cuh"

namespace zipage::cuda {
namespace {

// ---- numbers ----
constexpr int kThreads = kLightningChunk;
constexpr int kWarps = kThreads / kWarpSize;
static_assert(kLightningChunk == kWarps * kSearchColumns);

struct Args : SearchArgs {
  float* redundancy;
};

// ---- kernels ----

// A warp's slots, as lanes hold them: a few keys at a time, in bf16, which stay in registers where there is room.
template <int kHeadDim, bool kUndoes>
struct Keys {
  using L = Lanes<kHeadDim, false>;
  static constexpr int kRounds = kSearchColumns / L::kKeys, kRoundsOfSegment = kSegment / L::kKeys;
  static constexpr bool kStay = kRounds <= 16;

  KeySource source;
  bool is_fp8;
  int unit, first, mine;  // the lane's key of a round
  RawKey<L> raw[kStay ? kRounds : 1];

  __device__ Keys(const KeySource& a, int of_unit, int first_slot)
      : source(a),
        is_fp8(a.source.kv.is_fp8),
        unit(of_unit),
        first(first_slot),
        mine(static_cast<int>(threadIdx.x) % kWarpSize / L::kCount) {
    source.source.kv.is_fp8 = false;
    if constexpr (!kUndoes) source.cos_sin = nullptr;
    if constexpr (kStay) {
      if (is_fp8) {
        fetch_all<uint2>();
      } else {
        fetch_all<uint4>();
      }
    }
  }
  __device__ int local(int round) const { return round * L::kKeys + mine; }
  // With RoPE undone. All lanes of the warp call it.
  __device__ void get(int round, float (&x)[1][kVector]) const {
    const int position = kUndoes ? place(source, unit, first + local(round)).position : 0;
    if constexpr (kStay) {
      undo_rope<L, false>(source, raw[round], position, x);
    } else {
      const std::byte* row = segment_row(round / kRoundsOfSegment);
      undo_rope<L, false>(source, is_fp8 ? fetch<uint2>(row, round) : fetch<uint4>(row, round), position, x);
    }
  }

 private:
  template <typename Vector>
  __device__ void fetch_all() {
#pragma unroll
    for (int segment = 0; segment < kSearchColumns / kSegment; ++segment) {
      const std::byte* row = segment_row(segment);
#pragma unroll
      for (int i = 0; i < kRoundsOfSegment; ++i) {
        const int round = segment * kRoundsOfSegment + i;
        raw[kStay ? round : 0] = fetch<Vector>(row, round);
      }
    }
  }
  __device__ const std::byte* segment_row(int segment) const {
    const int t = first + segment * kSegment;
    return t < source.source.num_slots ? source.source.key_row(unit, t) : nullptr;
  }
  // Zeros past the end.
  template <typename Vector>
  __device__ RawKey<L> fetch(const std::byte* row, int round) const {
    const int c = static_cast<int>(threadIdx.x) % L::kCount;
    RawKey<L> key{};
    if (first + local(round) >= source.source.num_slots || c >= L::kChunks) return key;
    const Vector v = reinterpret_cast<const Vector*>(row)[local(round) % kSegment * L::kChunks + c];
    if constexpr (sizeof(Vector) == sizeof(uint2)) {
      key.vectors[0] = fp8x8_to_bf16x8(v);
    } else {
      key.vectors[0] = v;
    }
    return key;
  }
};

template <int kHeadDim, bool kUndoes>
__global__ void __launch_bounds__(kThreads, kHeadDim > 128 ? 1 : 2) lightning_kernel(const __grid_constant__ Args a) {
  wait_for_previous();
  using L = Lanes<kHeadDim, false>;
  using K = Keys<kHeadDim, kUndoes>;
  constexpr int kRowBytes = kHeadDim * 2;
  extern __shared__ __align__(128) std::byte unit_keys[];  // k^ [kLightningChunk, head_dim], swizzled
  __shared__ float shares[kWarps][kHeadDim];               // of u
  __shared__ float inverses[kLightningChunk], redundancy[kLightningChunk];
  __shared__ unsigned long long taken[kLightningChunk];
  __shared__ Hit found[kLightningChunk];
  const int thread = threadIdx.x, lane = thread % kWarpSize, warp = thread / kWarpSize, c = lane % L::kCount;
  const int unit = blockIdx.y, begin = blockIdx.x * kLightningChunk, own = warp * kSearchColumns;
  const int slots = min(kLightningChunk, a.source.num_slots - begin);
  taken[thread] = 0;

  const K keys(a, unit, begin + own);
  float sum[kVector] = {};
#pragma unroll
  for (int round = 0; round < K::kRounds; ++round) {
    float x[1][kVector], square = 0.0F;
    keys.get(round, x);
#pragma unroll
    for (int e = 0; e < kVector; ++e) square = fmaf(x[0][e], x[0][e], square);
    square = reduce_key<L>(square);
    const float inverse = square > 0.0F ? rsqrtf(square) : 0.0F;
    const int local = own + keys.local(round);
    if (c == 0) inverses[local] = inverse;
#pragma unroll
    for (int e = 0; e < kVector; ++e) sum[e] += x[0][e] *= inverse;
    if (c < L::kChunks) {
      *reinterpret_cast<uint4*>(unit_keys + swizzle<kRowBytes>(local, c)) =
          make_uint4(pack_half(x[0][0], x[0][1]), pack_half(x[0][2], x[0][3]), pack_half(x[0][4], x[0][5]),
                     pack_half(x[0][6], x[0][7]));
    }
  }
#pragma unroll
  for (int e = 0; e < kVector; ++e) {
#pragma unroll
    for (int offset = L::kCount; offset < kWarpSize; offset <<= 1) sum[e] += __shfl_xor_sync(kFullMask, sum[e], offset);
    if (lane < L::kChunks) shares[warp][lane * kVector + e] = sum[e];
  }
  __syncthreads();
  if (thread < slots) a.inverse[int64_t{unit} * a.source.num_slots + begin + thread] = inverses[thread];
  float u[kVector] = {};
  if (c < L::kChunks) {
    for (int w = 0; w < kWarps; ++w) {
#pragma unroll
      for (int e = 0; e < kVector; ++e) u[e] += shares[w][c * kVector + e];
    }
  }
#pragma unroll
  for (int round = 0; round < K::kRounds; ++round) {
    float x[1][kVector], dot = 0.0F;
    keys.get(round, x);
#pragma unroll
    for (int e = 0; e < kVector; ++e) dot = fmaf(x[0][e], u[e], dot);
    dot = reduce_key<L>(dot);
    const int local = own + keys.local(round);
    const float inverse = inverses[local];
    if (c == 0) redundancy[local] = dot * inverse - (inverse > 0.0F ? 1.0F : 0.0F);
  }
  __syncthreads();  // doubtful cosines read 1/|k| of all of the chunk

  Search<kHeadDim> search(a, unit, begin + own, found + own, unit_keys + own * kRowBytes);
  for (int m = ceil_div(slots, 16) - 1; m >= 0 && search.any_open(); --m) {
    search.look_at(begin + m * 16, unit_keys + m * 16 * kRowBytes);
  }
  __syncwarp();
  const Hit hit = found[thread];
  if (hit.row >= 0) atomicAdd(&taken[hit.row - begin], hit.fixed());
  __syncthreads();
  if (thread < slots) {
    a.redundancy[int64_t{unit} * a.source.num_slots + begin + thread] =
        redundancy[thread] - static_cast<float>(taken[thread]) / kFixedOne;
  }
}

template <int kHeadDim>
void launch_lightning(const Launch& launch, const Args& a) {
  constexpr int kBytes = kLightningChunk * kHeadDim * 2;
  const auto kernel = a.cos_sin != nullptr ? lightning_kernel<kHeadDim, true> : lightning_kernel<kHeadDim, false>;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes), "redundancy");
  run(launch, kernel, dim3(ceil_div(a.source.num_slots, kLightningChunk), a.source.num_units()), kThreads, kBytes, a);
}

}  // namespace

// ---- launcher ----

void lightning_redundancy(const Launch& launch, const LightningRedundancy& p) {
  if (serves_lightning_hopper(launch, p)) return lightning_redundancy_hopper(launch, p);
  const Args a{{{p.source, p.cos_sin, p.rotary_dim}, p.threshold, p.inverse}, p.redundancy};
  dispatch<64, 96, 128, 256>(p.source.geometry.head_dim,
                             [&]<int kHeadDim>() { launch_lightning<kHeadDim>(launch, a); });
}

}  // namespace zipage::cuda
