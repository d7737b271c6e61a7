// x . W over one panel of 64 columns.
//
// Numbers: bf16 weights are widened to fp32 (a shift for the first of a pair, a mask for the second) and multiplied by
// fp32 activations; one fp32 sum per output in order of k, whatever the number of rows.
#pragma once

#include <algorithm>
#include <cstring>

#include "ops/cpu/kernels.h"

namespace zipage::cpu {

// Few rows wait for the weights more than they compute: so many instructions lie between two cache lines that neither
// the processor's window nor its prefetcher looks far enough ahead.
constexpr int kFetchRows = 4;
constexpr int kFetchBytes = 4096;

template <int kBytes>
[[gnu::always_inline]] inline void fetch_ahead(const void* p) {
#pragma GCC unroll 16
  for (int i = 0; i < kBytes; i += 64) __builtin_prefetch(static_cast<const char*>(p) + kFetchBytes + i, 0, 2);
}

template <class S, int kRows, int kVectors>
[[gnu::always_inline]] inline void store_tile(const PanelArgs& args, int64_t row, int column,
                                              const typename S::F (&sum)[kRows][kVectors]) {
  using F = typename S::F;
  constexpr int kColumns = kVectors * S::kWidth;
  const int columns = std::min(kColumns, args.columns - column);
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    float* out = args.out + (row + r) * args.out_stride + column;
    if (columns == kColumns) {
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) {
        F y = sum[r][v];
        if (args.bias != nullptr) y = S::add(y, S::load(args.bias + column + v * S::kWidth));
        S::store(out + v * S::kWidth, y);
      }
    } else {
      float y[kColumns];
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) S::store(y + v * S::kWidth, sum[r][v]);
      for (int c = 0; c < columns; ++c) out[c] = y[c] + (args.bias == nullptr ? 0.0F : args.bias[column + c]);
    }
  }
}

// kRows x (kVectors * S::kWidth) outputs, all in registers.
template <class S, int kRows, int kVectors>
[[gnu::always_inline]] inline void panel_tile(const PanelArgs& args, int64_t row, int column) {
  using F = typename S::F;
  F sum[kRows][kVectors];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) sum[r][v] = S::zero();
  }
  const float* x[kRows];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) x[r] = args.x + (row + r) * args.x_stride;
  const Bf16* w = reinterpret_cast<const Bf16*>(args.panel) + 2 * column;
  const auto multiply = [&](const F(&weights)[kVectors], int64_t k) {
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const F value = S::set1(x[r][k]);
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) sum[r][v] = S::fma(value, weights[v], sum[r][v]);
    }
  };
  int64_t k = 0;
  for (; k + 1 < args.in_features; k += 2, w += 2 * kPanelColumns) {
    if (kRows <= kFetchRows) fetch_ahead<kVectors * S::kWidth * 4>(w);
    F weights[kVectors];
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) weights[v] = S::first_of_pairs(w + 2 * v * S::kWidth);
    multiply(weights, k);
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) weights[v] = S::second_of_pairs(w + 2 * v * S::kWidth);
    multiply(weights, k + 1);
  }
  if (k < args.in_features) {
    F weights[kVectors];
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) weights[v] = S::first_of_pairs(w + 2 * v * S::kWidth);
    multiply(weights, k);
  }
  store_tile<S, kRows, kVectors>(args, row, column, sum);
}

// `rows` rows across the whole panel, kVectors vectors at a time.
template <class S, int kRows, int kVectors>
void panel_rows(const PanelArgs& args, int64_t row) {
  for (int column = 0; column < args.columns; column += kVectors * S::kWidth) {
    panel_tile<S, kRows, kVectors>(args, row, column);
  }
}

// The widest tiles that fit the registers: all of the panel for few rows, so that the weights stream by once in order.
template <class S, int kMaxRows, int kVectors>
void panel_rows_any(const PanelArgs& args, int64_t row, int64_t rows) {
  if constexpr (kMaxRows > 0) {
    if (rows == kMaxRows) return panel_rows<S, kMaxRows, kVectors>(args, row);
    panel_rows_any<S, kMaxRows - 1, kVectors>(args, row, rows);
  }
}

template <class S>
void panel(const PanelArgs& args) {
  constexpr int kAllVectors = kPanelColumns / S::kWidth;
  constexpr int kFewRows = S::kRegisters == 32 ? 6 : 1;    // rows at kAllVectors
  constexpr int kTileRows = S::kRegisters == 32 ? 12 : 6;  // rows at two vectors
  constexpr int kFewVectors = S::kRegisters == 32 ? kAllVectors : 8;
  if (args.rows <= kFewRows) return panel_rows_any<S, kFewRows, kFewVectors>(args, 0, args.rows);
  const int64_t tiles = (args.rows + kTileRows - 1) / kTileRows;
  for (int64_t tile = 0; tile < tiles; ++tile) {
    const int64_t begin = args.rows * tile / tiles;
    panel_rows_any<S, kTileRows, 2>(args, begin, args.rows * (tile + 1) / tiles - begin);
  }
}

}  // namespace zipage::cpu
