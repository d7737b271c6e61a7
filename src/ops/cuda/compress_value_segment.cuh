// The lengths of the values of kSegment slots, by a warp.
#pragma once

#include "ops/cuda/compress_source.cuh"

namespace zipage::cuda {

__device__ __forceinline__ float squares(uint4 v) {
  float x[8];
  unpack8(v, x);
  float sum = 0;
#pragma unroll
  for (float e : x) sum += e * e;
  return sum;
}

__device__ __forceinline__ float squares(uint2 v) {
  float sum = 0;
#pragma unroll
  for (const uint32_t word : {v.x, v.y}) {
    const float2 a = fp8x2_to_float2(word), b = fp8x2_to_float2(word >> 16U);
    sum += a.x * a.x + a.y * a.y + b.x * b.x + b.y * b.y;
  }
  return sum;
}

// Some lanes hold one value, of which the first kParts, head_dim / 8, have a part: uint4, or uint2 of fp8.
template <int kParts, typename Part>
class ValueSegment {
 public:
  __device__ static const Part* row(const Source& source, int unit, int t) {
    return reinterpret_cast<const Part*>(source.key_row(unit, t) + source.kv.value_offset) + sub() * kParts + part();
  }
  // row(..., first slot), of whose segment so many slots are there.
  __device__ void fetch(const Part* row, int slots) {
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      raw_[i] = Part{};
      if (part() < kParts && (slots >= kSegment || i * kTogether + sub() < slots))
        raw_[i] = row[i * kTogether * kParts];
    }
  }
  // The length of the segment's slot slot(); two lanes have it, and one of them owns it.
  __device__ float norm() const {
    // Added up over the lanes of a value, for all of them at once.
    float sum[kLoads];
#pragma unroll
    for (int i = 0; i < kLoads; ++i) sum[i] = squares(raw_[i]);
    float square[1];
    share_out<Sum, kLanes / 2, 2>(sum, square);
    return sqrtf(square[0] + __shfl_xor_sync(kFullMask, square[0], 1));
  }
  __device__ static int slot() {
    return part() / 2 * kTogether + sub();
  }
  __device__ static bool owns() {
    return part() % 2 == 0;
  }

 private:
  static constexpr int kLanes = kParts <= 8 ? 8 : kParts <= 16 ? 16 : 32;
  static constexpr int kTogether = kWarpSize / kLanes;  // values that a warp asks for at once
  static constexpr int kLoads = kSegment / kTogether;   // of a lane
  static_assert(kLoads == kLanes / 2);
  __device__ static int part() {
    return static_cast<int>(threadIdx.x) % kLanes;
  }
  __device__ static int sub() {
    return static_cast<int>(threadIdx.x) % kWarpSize / kLanes;
  }

  Part raw_[kLoads];
};

}  // namespace zipage::cuda
