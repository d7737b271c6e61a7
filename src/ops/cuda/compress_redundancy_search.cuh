// The search for last(n): of each column n of a unit, the newest other row m whose cosine c[m, n] is above the
// threshold. Cosines are compared in half precision on tensor cores; one that lies too near the threshold to tell is
// computed in fp32 by the whole warp, so last(n) is what fp32 finds.
#pragma once

#include "ops/cuda/compress_keys.cuh"
#include "ops/cuda/compress_redundancy.h"

namespace zipage::cuda {

inline constexpr int kSearchColumns = 32;  // of a warp
// More than a cosine of unit vectors in half precision can err: each element by 2^-11 of itself, the sum by 2^-10.
inline constexpr float kDoubt = 1e-3F;

struct SearchArgs : KeySource {
  float threshold;
  float* inverse;  // 1 / |k| [units, num_slots]
};

struct Hit {
  int row;  // or -1
  float value;

  __device__ unsigned long long fixed() const { return static_cast<unsigned long long>(value * kFixedOne + 0.5F); }
};

// c[m, n] in fp32, by the whole warp.
template <int kHeadDim>
__device__ __noinline__ float exact_cosine(const SearchArgs& a, int unit, int m, int n) {
  using L = Lanes<kHeadDim, false>;
  float x[1][kVector], y[1][kVector];
  const Place at_m = place(a, unit, m), at_n = place(a, unit, n);
  undo_rope<L, false>(a, fetch_key<L>(a, at_m), at_m.position, x);
  undo_rope<L, false>(a, fetch_key<L>(a, at_n), at_n.position, y);
  float dot = 0.0F;
#pragma unroll
  for (int e = 0; e < kVector; ++e) dot = fmaf(x[0][e], y[0][e], dot);
  const float* inverse = a.inverse + int64_t{unit} * a.source.num_slots;
  return reduce_key<L>(dot) * inverse[m] * inverse[n];
}

// A warp's columns.
template <int kHeadDim>
struct Search {
  static constexpr int kSteps = kHeadDim / 16, kRowBytes = kHeadDim * 2, kTiles = kSearchColumns / 8;

  const SearchArgs& a;
  int unit, first_column;
  Hit* found;                           // [kSearchColumns] shared
  uint32_t columns[kTiles][kSteps][2];  // B fragments
  unsigned open;                        // bit 2 * tile + parity: that column of the lane still looks

  // keys: the columns' k^ in half precision [kSearchColumns, head_dim], shared, swizzled.
  __device__ Search(const SearchArgs& args, int of_unit, int column, Hit* hits, const std::byte* keys)
      : a(args), unit(of_unit), first_column(column), found(hits), open(0) {
    const int lane = threadIdx.x % kWarpSize;
    static_assert(kSearchColumns == kWarpSize);
    found[lane] = {-1, 0.0F};
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int k = 0; k < kSteps; k += 2) {
        uint32_t b[4];
        load_matrices(b, shared_address(keys + swizzle<kRowBytes>(n * 8 + lane % 8, 2 * k + lane / 8)));
        columns[n][k][0] = b[0], columns[n][k][1] = b[1], columns[n][k + 1][0] = b[2], columns[n][k + 1][1] = b[3];
      }
#pragma unroll
      for (int i = 0; i < 2; ++i)
        open |= first_column + n * 8 + 2 * (lane % 4) + i < a.source.num_slots ? 1U << (2 * n + i) : 0U;
    }
    __syncwarp();
  }

  __device__ bool any_open() const {
    return __any_sync(kFullMask, open != 0);
  }

  // Rows [m0, m0 + 16), k^ in half precision at `keys`; rows come from the newest down.
  __device__ void look_at(int m0, const std::byte* keys) {
    const int lane = threadIdx.x % kWarpSize;
    float c[kTiles][4] = {};
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      uint32_t row[4];
      load_matrices(row, shared_address(keys + swizzle<kRowBytes>(lane & 15, 2 * k + (lane >> 4))));
#pragma unroll
      for (int n = 0; n < kTiles; ++n) mma<HalfMath>(c[n], row, columns[n][k][0], columns[n][k][1]);
    }
    bool hit = false;
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        hit |= (open >> (2 * n + i) & 1U) != 0 && fmaxf(c[n][i], c[n][i + 2]) > a.threshold - kDoubt;
      }
    }
    if (__any_sync(kFullMask, hit)) take_hits(m0, c);
  }

 private:
  // A tile of 16 rows from m0 on has been multiplied: c[n][i] is row g (i < 2) or g + 8 and column 2t + i % 2 of tile
  // n. A byte of `best` is a column's newest row that may hit, plus one; the eight lanes that share a column agree on
  // it. The lane whose row it is notes a sure hit; doubtful ones are left to the whole warp.
  __device__ void take_hits(int m0, const float (&c)[kTiles][4]) {
    const int lane = threadIdx.x % kWarpSize, g = lane / 4, t = lane % 4, num_slots = a.source.num_slots;
    const float bar = a.threshold - kDoubt;
    const bool plain = m0 + 16 <= num_slots && (m0 + 16 <= first_column || m0 >= first_column + kSearchColumns);
    unsigned best[kTiles / 2] = {};
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        bool low = c[n][i] > bar, high = c[n][i + 2] > bar;
        if (!plain) {
          const int column = first_column + n * 8 + 2 * t + i;
          low = low && m0 + g != column && m0 + g < num_slots;
          high = high && m0 + g + 8 != column && m0 + g + 8 < num_slots;
        }
        const unsigned row = high ? g + 9 : low ? g + 1 : 0;
        if ((open >> (2 * n + i) & 1U) != 0) best[n / 2] |= row << (8 * (2 * (n % 2) + i));
      }
    }
#pragma unroll
    for (int w = 0; w < kTiles / 2; ++w) {
      best[w] = __vmaxu4(best[w], __shfl_xor_sync(kFullMask, best[w], 4));
      best[w] = __vmaxu4(best[w], __shfl_xor_sync(kFullMask, best[w], 8));
      best[w] = __vmaxu4(best[w], __shfl_xor_sync(kFullMask, best[w], 16));
    }
    unsigned closed = 0, doubts = 0;
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const unsigned row = best[n / 2] >> (8 * (2 * (n % 2) + i)) & 0xffU;
        closed |= row != 0 ? 1U << (2 * n + i) : 0U;
        if (row == static_cast<unsigned>(g) + 1 || row == static_cast<unsigned>(g) + 9) {
          const float value = row > 8 ? c[n][i + 2] : c[n][i];
          if (value > a.threshold + kDoubt) {
            found[n * 8 + 2 * t + i] = {m0 + static_cast<int>(row) - 1, value};
          } else {
            doubts |= 1U << (2 * n + i);
          }
        }
      }
    }
    doubts |= __shfl_xor_sync(kFullMask, doubts, 4);
    doubts |= __shfl_xor_sync(kFullMask, doubts, 8);
    doubts |= __shfl_xor_sync(kFullMask, doubts, 16);
    open &= ~(closed & ~doubts);
    // Doubtful columns one by one, their rows of this tile from the newest down.
    unsigned asking = __ballot_sync(kFullMask, g == 0 && doubts != 0);
    while (asking != 0) {
      const int speaker = __ffs(asking) - 1;
      asking &= asking - 1;
      unsigned in_doubt = __shfl_sync(kFullMask, doubts, speaker);
      while (in_doubt != 0) {
        const int bit = __ffs(in_doubt) - 1;
        in_doubt &= in_doubt - 1;
        const int local = bit / 2 * 8 + 2 * speaker + bit % 2;
        const int column = first_column + local;
        bool hit = false;
        for (int row = 15; row >= 0 && !hit; --row) {
          const int m = m0 + row;
          if (m >= num_slots || m == column) continue;
          float value = 0.0F;
#pragma unroll
          for (int n = 0; n < kTiles; ++n) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
              if (2 * n + i % 2 == bit && i / 2 == row / 8) value = c[n][i];
            }
          }
          value = __shfl_sync(kFullMask, value, row % 8 * 4 + speaker);
          if (!(value > bar)) continue;
          if (value <= a.threshold + kDoubt) value = exact_cosine<kHeadDim>(a, unit, m, column);
          if (!(value > a.threshold)) continue;
          hit = true;
          if (lane == 0) found[local] = {m, value};
        }
        if (hit && t == speaker) open &= ~(1U << bit);
      }
    }
  }
};

}  // namespace zipage::cuda
