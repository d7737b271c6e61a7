// Keys in shared memory as warpgroups multiply them: panels of 64 elements, [panels, rows, 64] in bf16, each aligned to
// 1024 bytes, the 16-byte chunks of a panel's row permuted.
#pragma once

#include "ops/cuda/compress_source.cuh"
#include "ops/cuda/hopper.cuh"

namespace zipage::cuda {

inline constexpr int kPanelRow = 128;  // bytes

// Where chunk `chunk` of a row lies.
template <int kRows>
__device__ __forceinline__ int panel_chunk(int row, int chunk) {
  return chunk / 8 * (kRows * kPanelRow) + swizzle<kPanelRow>(row, chunk % 8);
}

// Slots [t, t + kSegment) of a unit into as many rows from `row` on, a multiple of eight, by a warp; zeros past the
// end. They are there after copy_commit() and copy_wait(), and for a warpgroup's product after fence_async_proxy()
// behind that.
template <int kHeadDim, int kRows, bool kFp8>
__device__ __forceinline__ void load_segment(const Source& source, int unit, int t, std::byte* panels, int row) {
  constexpr int kChunks = kHeadDim / (kFp8 ? 16 : 8);  // of 16 bytes, of a key in the cache
  const int lane = threadIdx.x % kWarpSize, valid = source.num_slots - t;
  // An address is needed even where nothing is read.
  const std::byte* from = (valid > 0 ? source.key_row(unit, t) : source.kv.data) + lane * 16;
  std::byte* to = panels + row * kPanelRow;
#pragma unroll
  for (int i = 0; i < kSegment * kChunks / kWarpSize; ++i) {
    const int c = i * kWarpSize + lane, slot = c / kChunks, chunk = c % kChunks;
    if constexpr (kFp8) {
      const uint4 v =
          slot < valid ? *reinterpret_cast<const uint4*>(from + i * kWarpSize * 16) : make_uint4(0, 0, 0, 0);
      *reinterpret_cast<uint4*>(to + panel_chunk<kRows>(slot, 2 * chunk)) = fp8x8_to_bf16x8(make_uint2(v.x, v.y));
      *reinterpret_cast<uint4*>(to + panel_chunk<kRows>(slot, 2 * chunk + 1)) = fp8x8_to_bf16x8(make_uint2(v.z, v.w));
    } else {
      copy_async16(shared_address(to + panel_chunk<kRows>(slot, chunk)), from + i * kWarpSize * 16, slot < valid);
    }
  }
}

}  // namespace zipage::cuda
