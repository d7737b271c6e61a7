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

// Slots [t, t + kSegment) of a unit into as many rows from `row` on, a multiple of eight, as load_segment() does. For a
// warpgroup's product they are there after fence_async_proxy() behind the wait.
template <int kHeadDim, int kRows, bool kFp8>
__device__ __forceinline__ void load_panel_segment(const Source& source, int unit, int t, std::byte* panels, int row) {
  std::byte* to = panels + row * kPanelRow;
  load_segment<kHeadDim, kFp8>(source, unit, t,
                               [&](int slot, int chunk) { return to + panel_chunk<kRows>(slot, chunk); });
}

}  // namespace zipage::cuda
