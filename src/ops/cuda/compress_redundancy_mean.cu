// Stage 4 for scope mean and content keys: R[t] = k^[t] . u, u being the sum of all k^, the keys' directions with RoPE
// undone.
//
// A few lanes hold a key, both halves of a pair in the same lane, and walk a run of neighbouring slots. From slot to
// slot the sum of the keys so far, or u, is turned by the distance of their positions, which is small: angles of
// distances below kNear lie in shared memory. Only where a run ends, or begins, a position is looked up in the whole
// table, which would come from the second-level cache, twice a key's bytes. Blocks stay.
#include <algorithm>

#include "ops/cuda/compress_redundancy.h"

namespace zipage::cuda {
namespace {

// ---- numbers ----
constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarpSize;
constexpr int kSlots = kMeanSlots;  // of a warp at a time
constexpr int kVector = 8;          // elements a lane holds of each half of a key
constexpr int kAhead = 4;           // keys on their way

template <int kHeadDim>
struct Shape {
  static constexpr int kLanes = kHeadDim / (2 * kVector);   // of a key
  static constexpr int kRun = kSlots * kLanes / kWarpSize;  // slots
  static constexpr int kNear = kHeadDim > 128 ? 32 : 64;
  static constexpr int kPitch = kHeadDim / 4 + 4;  // float4 of a row; rows of different parity lie in different banks
  static_assert(kRun % kAhead == 0 && kSegment % kAhead == 0);
};

// ---- kernels ----

// Of distances [0, kNear), in the order in which lanes read them: cosines of four elements, of the next four, sines.
template <int kHeadDim>
struct Near {
  using S = Shape<kHeadDim>;
  float4 rows[S::kNear * S::kPitch];

  // By the whole block.
  __device__ void load(const MeanRedundancy& a, float rescale) {
    constexpr int kRow = kHeadDim / 4, kHalf = kRow / 2;  // float4
    const auto* table = reinterpret_cast<const float4*>(a.cos_sin);
    for (int i = threadIdx.x; i < min(S::kNear, a.num_positions) * kRow; i += kThreads) {
      const int at = i % kRow, part = at / kHalf * 2 + at % 2, lane = at % kHalf / 2;
      float4 v = table[i];
      v.x *= rescale, v.y *= rescale, v.z *= rescale, v.w *= rescale;
      rows[i / kRow * S::kPitch + part * S::kLanes + lane] = v;
    }
    __syncthreads();
  }
};

// Cosines and sines of a lane's elements.
struct Angles {
  float cosine[kVector], sine[kVector];

  __device__ void set(int first, float4 c, float4 s) {
    cosine[first] = c.x, cosine[first + 1] = c.y, cosine[first + 2] = c.z, cosine[first + 3] = c.w;
    sine[first] = s.x, sine[first + 1] = s.y, sine[first + 2] = s.z, sine[first + 3] = s.w;
  }
};

// The ways to a position's, or distance's, angles.
template <int kHeadDim>
struct Rotations {
  using S = Shape<kHeadDim>;
  const Near<kHeadDim>& near;
  const float* table;  // of all positions
  float rescale;       // takes the table's factor off
  int c;               // the lane's part of a key

  __device__ Angles of_distance(int distance) const {
    const float4* row = near.rows + distance * S::kPitch + c;
    Angles angles;
    angles.set(0, row[0], row[2 * S::kLanes]);
    angles.set(4, row[S::kLanes], row[3 * S::kLanes]);
    return angles;
  }
  __device__ Angles of_position(int position) const {
    const auto* cosines = reinterpret_cast<const float4*>(table + int64_t{position} * kHeadDim) + 2 * c;
    const float4* sines = cosines + kHeadDim / 8;
    Angles angles;
    angles.set(0, cosines[0], sines[0]);
    angles.set(4, cosines[1], sines[1]);
#pragma unroll
    for (int e = 0; e < kVector; ++e) angles.cosine[e] *= rescale, angles.sine[e] *= rescale;
    return angles;
  }
};

template <int kHeadDim>
__device__ __forceinline__ void turn_by(float (&x)[2][kVector], const Rotations<kHeadDim>& rotations, int distance) {
  if (distance < Shape<kHeadDim>::kNear) {
    turn<false>(x, rotations.of_distance(distance));
  } else {
    turn<false>(x, rotations.of_position(distance));
  }
}

// The lane's part of a key as it lies in the cache.
template <bool kFp8>
struct RawKey {
  std::conditional_t<kFp8, uint2, uint4> low, high;

  __device__ void widen(float (&x)[2][kVector]) const {
    if constexpr (kFp8) {
      const uint32_t words[2][2] = {{low.x, low.y}, {high.x, high.y}};
#pragma unroll
      for (int h = 0; h < 2; ++h) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float2 v = fp8x2_to_float2(words[h][i]), w = fp8x2_to_float2(words[h][i] >> 16);
          x[h][4 * i] = v.x, x[h][4 * i + 1] = v.y, x[h][4 * i + 2] = w.x, x[h][4 * i + 3] = w.y;
        }
      }
    } else {
      unpack8(low, x[0]);
      unpack8(high, x[1]);
    }
  }
};

// Walks the lane's run of a unit's kSlots slots from `first` on: begin(position of the first), then body(t, distance
// from the slot before, x) for each, 0 for the first. kWhole: all of them are there and have positions in the pool;
// else slots past the end have zeros, and no distance. Returns the last position.
template <int kHeadDim, bool kFp8, bool kWhole, typename Begin, typename Body>
__device__ __forceinline__ int walk_keys(const MeanRedundancy& a, int unit, int first, const Begin& begin_run,
                                         const Body& body) {
  using S = Shape<kHeadDim>;
  using Key = RawKey<kFp8>;
  using Vector = decltype(Key::low);
  constexpr int kRow = kHeadDim / kVector;  // vectors of a key
  const Source& source = a.source;
  const int lane = threadIdx.x % kWarpSize, c = lane % S::kLanes, begin = first + lane / S::kLanes * S::kRun;
  const Vector* row = nullptr;         // the lane's part of the segment's first key
  const int32_t* positions = nullptr;  // of the segment
  const auto enter_segment = [&](int i) {
    if (!kWhole && begin + i >= source.num_slots) return;
    row = reinterpret_cast<const Vector*>(source.key_row(unit, begin + i)) + c;
    positions = source.positions + source.index(unit, begin + i);
  };
  const auto fetch_key = [&](int i) {
    const int t = begin + i;
    Key key{};
    if (kWhole || t < source.num_slots) {
      const Vector* from = row + i % kSegment * kRow;
      key.low = from[0], key.high = from[kRow / 2];
    }
    return key;
  };
  const auto fetch_positions = [&](int i, int(&position)[kAhead]) {
    if constexpr (kWhole) {
      static_assert(kAhead == 4);
      const int4 v = *reinterpret_cast<const int4*>(positions + i % kSegment);
      position[0] = v.x, position[1] = v.y, position[2] = v.z, position[3] = v.w;
    } else {
#pragma unroll
      for (int j = 0; j < kAhead; ++j) {
        const int t = begin + i + j;
        position[j] = t >= source.num_slots   ? 0
                      : t < source.num_scored ? positions[i % kSegment + j]
                                              : source.first_position + t - source.num_scored;
      }
    }
  };
  Key ahead[kAhead];
  int positions_ahead[kAhead];
  enter_segment(0);
  fetch_positions(0, positions_ahead);
#pragma unroll
  for (int j = 0; j < kAhead; ++j) ahead[j] = fetch_key(j);
  int last = positions_ahead[0];
  begin_run(last);
#pragma unroll 1
  for (int i = 0; i < S::kRun; i += kAhead) {
    const int next = i + kAhead;
    int position[kAhead];
#pragma unroll
    for (int j = 0; j < kAhead; ++j) position[j] = positions_ahead[j];
    if (next < S::kRun) {
      if (next % kSegment == 0) enter_segment(next);
      fetch_positions(next, positions_ahead);
    }
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      float x[2][kVector];
      ahead[j].widen(x);
      if (next < S::kRun) ahead[j] = fetch_key(next + j);
      const bool there = kWhole || begin + i + j < source.num_slots;
      body(begin + i + j, there ? position[j] - last : 0, x);
      last = there ? position[j] : last;
    }
  }
  return last;
}

template <int kHeadDim, bool kFp8, typename Begin, typename Body>
__device__ __forceinline__ int for_each_key(const MeanRedundancy& a, int unit, int first, const Begin& begin,
                                            const Body& body) {
  if (first + kSlots <= a.source.num_scored) return walk_keys<kHeadDim, kFp8, true>(a, unit, first, begin, body);
  return walk_keys<kHeadDim, kFp8, false>(a, unit, first, begin, body);
}

template <int kHeadDim>
__device__ __forceinline__ float reduce_key(float v) {
#pragma unroll
  for (int offset = Shape<kHeadDim>::kLanes / 2; offset > 0; offset >>= 1) v += __shfl_xor_sync(kFullMask, v, offset);
  return v;
}

// body(unit, slot block, rotations) for all of them, a warp each.
template <int kHeadDim, typename Body>
__device__ __forceinline__ void for_each_slot_block(const MeanRedundancy& a, const Body& body) {
  extern __shared__ __align__(16) std::byte shared[];
  auto& near = *reinterpret_cast<Near<kHeadDim>*>(shared);
  const float rescale = 1.0F / a.cos_sin[0];
  near.load(a, rescale);
  const Rotations<kHeadDim> rotations{near, a.cos_sin, rescale,
                                      static_cast<int>(threadIdx.x) % Shape<kHeadDim>::kLanes};
  const int warps = static_cast<int>(gridDim.x) * kWarps;
  for (int item = static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / kWarpSize;
       item < a.num_units * a.slot_blocks; item += warps) {
    body(item / a.slot_blocks, item % a.slot_blocks, rotations);
  }
}

// 1 / |k| of every slot, and u's shares by slot blocks.
template <int kHeadDim, bool kFp8>
__global__ void __launch_bounds__(kThreads, 2) mean_prepare_kernel(const __grid_constant__ MeanRedundancy a) {
  wait_for_previous();
  using S = Shape<kHeadDim>;
  const int lane = threadIdx.x % kWarpSize, c = lane % S::kLanes, num_slots = a.source.num_slots;
  for_each_slot_block<kHeadDim>(a, [&](int unit, int block, const Rotations<kHeadDim>& rotations) {
    float sum[2][kVector] = {};  // as the last slot's position sees it
    const int last = for_each_key<kHeadDim, kFp8>(
        a, unit, block * kSlots, [](int) {},
        [&](int t, int distance, const float(&x)[2][kVector]) {
          float square = 0.0F;
#pragma unroll
          for (int e = 0; e < kVector; ++e) square = fmaf(x[0][e], x[0][e], fmaf(x[1][e], x[1][e], square));
          square = reduce_key<kHeadDim>(square);
          const float inverse = square > 0.0F ? rsqrtf(square) : 0.0F;
          if (c == 0 && t < num_slots) a.inverse[int64_t{unit} * num_slots + t] = inverse;
          turn_by<kHeadDim>(sum, rotations, distance);
#pragma unroll
          for (int e = 0; e < kVector; ++e) {
            sum[0][e] = fmaf(inverse, x[0][e], sum[0][e]);
            sum[1][e] = fmaf(inverse, x[1][e], sum[1][e]);
          }
        });
    turn<true>(sum, rotations.of_position(last));
#pragma unroll
    for (int h = 0; h < 2; ++h) {
#pragma unroll
      for (int e = 0; e < kVector; ++e) {
#pragma unroll
        for (int offset = S::kLanes; offset < kWarpSize; offset <<= 1)
          sum[h][e] += __shfl_xor_sync(kFullMask, sum[h][e], offset);
      }
      if (lane < S::kLanes) {
        auto* to = reinterpret_cast<float4*>(a.sums + (int64_t{unit} * a.slot_blocks + block) * kHeadDim) +
                   h * (kHeadDim / 8) + 2 * c;
        to[0] = make_float4(sum[h][0], sum[h][1], sum[h][2], sum[h][3]);
        to[1] = make_float4(sum[h][4], sum[h][5], sum[h][6], sum[h][7]);
      }
    }
  });
}

template <int kHeadDim, bool kFp8>
__global__ void __launch_bounds__(kThreads, 2) mean_meet_kernel(const __grid_constant__ MeanRedundancy a) {
  wait_for_previous();
  using S = Shape<kHeadDim>;
  const int c = threadIdx.x % S::kLanes, num_slots = a.source.num_slots;
  for_each_slot_block<kHeadDim>(a, [&](int unit, int block, const Rotations<kHeadDim>& rotations) {
    float u[2][kVector];  // as the slot's position sees it
#pragma unroll
    for (int h = 0; h < 2; ++h)
      load8(a.sums + int64_t{unit} * a.slot_blocks * kHeadDim + h * kHeadDim / 2 + kVector * c, u[h]);
    for_each_key<kHeadDim, kFp8>(
        a, unit, block * kSlots, [&](int position) { turn<false>(u, rotations.of_position(position)); },
        [&](int t, int distance, const float(&x)[2][kVector]) {
          turn_by<kHeadDim>(u, rotations, distance);
          float dot = 0.0F;
#pragma unroll
          for (int e = 0; e < kVector; ++e) dot = fmaf(x[0][e], u[0][e], fmaf(x[1][e], u[1][e], dot));
          dot = reduce_key<kHeadDim>(dot);
          if (c == 0 && t < num_slots) {
            const int64_t at = int64_t{unit} * num_slots + t;
            a.redundancy[at] = dot * a.inverse[at];
          }
        });
  });
}

// ---- launcher ----

template <int kHeadDim, bool kFp8>
void launch_mean(const Launch& launch, const MeanRedundancy& a) {
  constexpr int kBytes = sizeof(Near<kHeadDim>);
  const auto prepare = mean_prepare_kernel<kHeadDim, kFp8>, meet = mean_meet_kernel<kHeadDim, kFp8>;
  check(cudaFuncSetAttribute(prepare, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes), "redundancy");
  check(cudaFuncSetAttribute(meet, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes), "redundancy");
  const int blocks = std::min(ceil_div(a.num_units * a.slot_blocks, kWarps), 2 * launch.num_sms);
  run(launch, prepare, blocks, kThreads, kBytes, a);
  add_shares(launch, a.sums, a.num_units, a.slot_blocks, kHeadDim);
  run(launch, meet, blocks, kThreads, kBytes, a);
}

}  // namespace

bool serves_mean_redundancy(int head_dim, int rotary_dim) {
  return rotary_dim == head_dim && (head_dim == 64 || head_dim == 128 || head_dim == 256);
}

void mean_redundancy(const Launch& launch, const MeanRedundancy& a) {
  dispatch<64, 128, 256>(a.source.geometry.head_dim, [&]<int kHeadDim>() {
    if (a.source.kv.is_fp8) {
      launch_mean<kHeadDim, true>(launch, a);
    } else {
      launch_mean<kHeadDim, false>(launch, a);
    }
  });
}

}  // namespace zipage::cuda
