// x . W over one panel of 64 columns whose weights are 4 or 8 bit integers with a scale and a minimum for every 32.
//
// Numbers: fp32 activations times the integers, summed over a group in order of k; then group sum * scale and
// (sum of the group's x) * minimum are added, in order of groups. Nothing is rounded to fewer bits than the file has.
#pragma once

#include "ops/cpu/linear_kernels.h"

namespace zipage::cpu {

// One group's weights, kVectors vectors from `column` on; `multiply(weights, k)` for each k in order.
template <class S>
struct Nibbles {
  static constexpr int64_t kBytes = kNibbleGroupBytes;

  template <int kVectors, bool kFetch, typename Multiply>
  [[gnu::always_inline]] static void for_each_k(const std::byte* group, int column, const Multiply& multiply) {
    using F = typename S::F;
    const auto* packed = reinterpret_cast<const uint32_t*>(group) + column;
    for (int k = 0; k < kQuantGroup; k += 8, packed += kPanelColumns) {
      if (kFetch) fetch_ahead<kVectors * S::kWidth * 4>(packed);
      typename S::Words words[kVectors];
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) words[v] = S::load_words(packed + v * S::kWidth);
      const auto step = [&]<int kIndex>() {
        F weights[kVectors];
#pragma GCC unroll 16
        for (int v = 0; v < kVectors; ++v) weights[v] = S::template nibble<kIndex>(words[v]);
        multiply(weights, k + kIndex);
      };
      step.template operator()<0>();
      step.template operator()<1>();
      step.template operator()<2>();
      step.template operator()<3>();
      step.template operator()<4>();
      step.template operator()<5>();
      step.template operator()<6>();
      step.template operator()<7>();
    }
  }
};

template <class S>
struct Bytes {
  static constexpr int64_t kBytes = kByteGroupBytes;

  template <int kVectors, bool kFetch, typename Multiply>
  [[gnu::always_inline]] static void for_each_k(const std::byte* group, int column, const Multiply& multiply) {
    using F = typename S::F;
    const auto* packed = reinterpret_cast<const int8_t*>(group) + column;
    for (int k = 0; k < kQuantGroup; ++k, packed += kPanelColumns) {
      if (kFetch) fetch_ahead<kVectors * S::kWidth>(packed);
      F weights[kVectors];
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) weights[v] = S::load_bytes(packed + v * S::kWidth);
      multiply(weights, k);
    }
  }
};

template <class S, class Weights, int kRows, int kVectors>
[[gnu::always_inline]] inline void quantised_tile(const PanelArgs& args, int64_t row, int column) {
  using F = typename S::F;
  F sum[kRows][kVectors];
  const float* x[kRows];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    x[r] = args.x + (row + r) * args.x_stride;
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) sum[r][v] = S::zero();
  }
  const int64_t groups = args.in_features / kQuantGroup;
  const std::byte* packed = args.panel;
  for (int64_t group = 0; group < groups; ++group, packed += Weights::kBytes) {
    F part[kRows][kVectors];
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) part[r][v] = S::zero();
    }
    Weights::template for_each_k<kVectors, (kRows <= kFetchRows)>(
        packed, column, [&](const F(&weights)[kVectors], int64_t k) {
#pragma GCC unroll 16
          for (int r = 0; r < kRows; ++r) {
            const F value = S::set1(x[r][group * kQuantGroup + k]);
#pragma GCC unroll 16
            for (int v = 0; v < kVectors; ++v) part[r][v] = S::fma(value, weights[v], part[r][v]);
          }
        });
    const auto* scales = reinterpret_cast<const uint16_t*>(packed + Weights::kBytes - kGroupScaleBytes) + column;
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) {
      const F scale = S::load_half(scales + v * S::kWidth);
      const F minimum = S::load_half(scales + kPanelColumns + v * S::kWidth);
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        sum[r][v] = S::fma(part[r][v], scale, sum[r][v]);
        sum[r][v] = S::fma(S::set1(args.group_sums[(row + r) * groups + group]), minimum, sum[r][v]);
      }
    }
  }
  store_tile<S, kRows, kVectors>(args, row, column, sum);
}

template <class S, class Weights, int kMaxRows, int kVectors>
void quantised_rows(const PanelArgs& args, int64_t row, int64_t rows) {
  if constexpr (kMaxRows > 0) {
    if (rows == kMaxRows) {
      for (int column = 0; column < args.columns; column += kVectors * S::kWidth) {
        quantised_tile<S, Weights, kMaxRows, kVectors>(args, row, column);
      }
      return;
    }
    quantised_rows<S, Weights, kMaxRows - 1, kVectors>(args, row, rows);
  }
}

template <class S, class Weights>
void quantised_panel(const PanelArgs& args) {
  constexpr bool kMany = S::kRegisters == 32;  // each output takes two registers: its sum and its group's
  constexpr int kFewRows = kMany ? 3 : 1;
  constexpr int kTileRows = kMany ? 6 : 3;
  if (args.rows <= kFewRows) return quantised_rows<S, Weights, kFewRows, 4>(args, 0, args.rows);
  const int64_t tiles = (args.rows + kTileRows - 1) / kTileRows;
  for (int64_t tile = 0; tile < tiles; ++tile) {
    const int64_t begin = args.rows * tile / tiles;
    quantised_rows<S, Weights, kTileRows, 2>(args, begin, args.rows * (tile + 1) / tiles - begin);
  }
}

template <class S>
void group_sums_row(const float* x, int64_t n, float* sums) {
  for (int64_t i = 0; i < n; i += kQuantGroup) {
    typename S::F sum = S::load(x + i);
    for (int64_t j = S::kWidth; j < kQuantGroup; j += S::kWidth) sum = S::add(sum, S::load(x + i + j));
    *sums++ = S::sum(sum);
  }
}

}  // namespace zipage::cpu
