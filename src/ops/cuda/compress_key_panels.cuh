// Keys in shared memory as warpgroups multiply them: panels of 64 elements of 16 bits, [panels, rows, 64], each aligned
// to 1024 bytes, the 16-byte chunks of a panel's row permuted; and bits of what their product leaves.
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

// In bf16, slots [t, t + kSegment) of a unit into as many rows from `row` on, a multiple of eight, as load_segment()
// does. For a warpgroup's product they are there after fence_async_proxy() behind the wait.
template <int kHeadDim, int kRows, bool kFp8>
__device__ __forceinline__ void load_panel_segment(const Source& source, int unit, int t, std::byte* panels, int row) {
  std::byte* to = panels + row * kPanelRow;
  load_segment<kHeadDim, kFp8>(source, unit, t,
                               [&](int slot, int chunk) { return to + panel_chunk<kRows>(slot, chunk); });
}

// Of a warpgroup's product, whose d[4 n + 2 h + e] is row 8 h + g and column 8 n + 2 t + e of the warp's part in lane
// 4 g + t: words[h][w] has bits of columns [32 w, + 32) of row 8 h + g, this lane's at n % 4 * 8 + e. Each lane is left
// with words of one row: left[i] is word 2 i + t % 2 of row 8 (t / 2) + g, whole.
template <int kLeft>
__device__ __forceinline__ void share_bits(const uint32_t (&words)[2][2 * kLeft], uint32_t (&left)[kLeft]) {
  const int t = threadIdx.x % 4;
  const bool odd = t % 2 != 0, upper = t / 2 != 0;
#pragma unroll
  for (int i = 0; i < kLeft; ++i) {
    uint32_t kept[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const uint32_t first = words[h][2 * i] << (2 * t), second = words[h][2 * i + 1] << (2 * t);
      kept[h] = (odd ? second : first) | __shfl_xor_sync(kFullMask, odd ? first : second, 1);
    }
    left[i] = (upper ? kept[1] : kept[0]) | __shfl_xor_sync(kFullMask, upper ? kept[0] : kept[1], 2);
  }
}

// Bit b of lane l becomes bit l of lane b.
__device__ __forceinline__ uint32_t transpose_bits(uint32_t x) {
  const int lane = threadIdx.x % kWarpSize;
  constexpr uint32_t kLow[5] = {0x0000ffffU, 0x00ff00ffU, 0x0f0f0f0fU, 0x33333333U, 0x55555555U};
#pragma unroll
  for (int step = 0; step < 5; ++step) {
    const int distance = 16 >> step;
    const uint32_t other = __shfl_xor_sync(kFullMask, x, distance);
    x = (lane & distance) == 0 ? (x & kLow[step]) | (other & kLow[step]) << distance
                               : (x & ~kLow[step]) | (other >> distance & kLow[step]);
  }
  return x;
}

}  // namespace zipage::cuda
