// Attention of query rows over one segment of slots, and the merging of segments.
//
// Numbers: everything in fp32 on widened bf16 K and V. A score is the sum over even elements plus the sum over odd
// ones, each in order; a row of V enters in slot order. What a row must not see gets score -inf before the maximum and
// weight 0 after it, and slots that no row sees are never read beyond their tile's keys, so what unused slots hold is
// without effect.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/cpu/kernels.h"
#include "ops/cpu/simd_math.h"

namespace zipage::cpu {

// kFetch: on the way fetch the values of the same tile, as many bytes as its keys.
template <class S, int kRows, bool kFetch>
[[gnu::always_inline]] inline void score_rows(const SegmentArgs& args, int row) {
  using F = typename S::F;
  const F scale = S::set1(args.scale);
  const float* q[kRows];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) q[r] = args.queries[row + r];
  const int tiles = (args.num_slots + 15) / 16;
  for (int tile = 0; tile < tiles; ++tile) {
    for (int lane = 0; lane < 16; lane += S::kWidth) {
      F even[kRows], odd[kRows];
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) even[r] = odd[r] = S::zero();
      const Bf16* k = args.key_tiles[tile] + 2 * lane;
      const Bf16* v = args.value_tiles[tile];
      for (int d = 0; d < args.head_dim; d += 2, k += 32) {
        if (kFetch && lane == 0) __builtin_prefetch(v + 16 * d, 0, 2);
        const F first = S::first_of_pairs(k);
        const F second = S::second_of_pairs(k);
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) {
          even[r] = S::fma(S::set1(q[r][d]), first, even[r]);
          odd[r] = S::fma(S::set1(q[r][d + 1]), second, odd[r]);
        }
      }
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        S::store(args.scores + static_cast<int64_t>(row + r) * kSegmentSlots + tile * 16 + lane,
                 S::mul(S::add(even[r], odd[r]), scale));
      }
    }
  }
}

// Scores of one row to weights exp(score - largest), 0 where the row must not see.
template <class S>
inline void weigh_row(const SegmentArgs& args, int row, float& largest, float& sum) {
  using F = typename S::F;
  float* scores = args.scores + static_cast<int64_t>(row) * kSegmentSlots;
  const int end = (args.num_slots + 15) / 16 * 16;
  const int visible = std::clamp(args.visible[row], 0, args.num_slots);
  if (visible == 0) {
    std::fill(scores, scores + end, 0.0F);
    largest = -std::numeric_limits<float>::infinity();
    sum = 0;
    return;
  }
  std::fill(scores + visible, scores + end, -std::numeric_limits<float>::infinity());
  F top = S::load(scores);
  for (int t = S::kWidth; t < end; t += S::kWidth) top = S::max(top, S::load(scores + t));
  largest = S::largest(top);
  const F shift = S::set1(largest);
  F total = S::zero();
  for (int t = 0; t < end; t += S::kWidth) {
    const F weight = exp<S>(S::sub(S::load(scores + t), shift));
    S::store(scores + t, weight);
    total = S::add(total, weight);
  }
  sum = S::sum(total);
}

// values[row ..][d ..] = sum over slots of weight * V, for kPairs pairs of vectors of d. kFetch: fetch the next keys.
template <class S, int kRows, int kPairs, bool kFetch>
[[gnu::always_inline]] inline void value_rows(const SegmentArgs& args, int row, int d, float* values) {
  using F = typename S::F;
  F even[kRows][kPairs], odd[kRows][kPairs];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int p = 0; p < kPairs; ++p) even[r][p] = odd[r][p] = S::zero();
  }
  const float* weights = args.scores + static_cast<int64_t>(row) * kSegmentSlots;
  for (int begin = 0; begin < args.num_slots; begin += 16) {
    const Bf16* v = args.value_tiles[begin / 16] + d;
    const int end = std::min(begin + 16, args.num_slots);
    const Bf16* next = args.next_key_tiles == nullptr ? nullptr : args.next_key_tiles[begin / 16];
    for (int t = begin; t < end; ++t, v += args.head_dim) {
      if (kFetch && next != nullptr) {
        for (int i = 0; i < args.head_dim; i += 32) __builtin_prefetch(next + i, 0, 2);
        next += args.head_dim;
      }
      F first[kPairs], second[kPairs];
#pragma GCC unroll 4
      for (int p = 0; p < kPairs; ++p) {
        first[p] = S::first_of_pairs(v + 2 * p * S::kWidth);
        second[p] = S::second_of_pairs(v + 2 * p * S::kWidth);
      }
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const F weight = S::set1(weights[r * kSegmentSlots + t]);
#pragma GCC unroll 4
        for (int p = 0; p < kPairs; ++p) {
          even[r][p] = S::fma(weight, first[p], even[r][p]);
          odd[r][p] = S::fma(weight, second[p], odd[r][p]);
        }
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int p = 0; p < kPairs; ++p) {
      S::store_pairs(values + static_cast<int64_t>(row + r) * args.head_dim + d + 2 * p * S::kWidth, even[r][p],
                     odd[r][p]);
    }
  }
}

// The last kWidth elements of a head whose size is no multiple of two vectors.
template <class S>
inline void value_tail(const SegmentArgs& args, int row, int d, float* values) {
  using F = typename S::F;
  F sum = S::zero();
  const float* weights = args.scores + static_cast<int64_t>(row) * kSegmentSlots;
  for (int t = 0; t < args.num_slots; ++t) {
    const Bf16* v = args.value_tiles[t / 16] + static_cast<int64_t>(t % 16) * args.head_dim + d;
    sum = S::fma(S::set1(weights[t]), S::load_bf16(v), sum);
  }
  S::store(values + static_cast<int64_t>(row) * args.head_dim + d, sum);
}

template <class S, int kRows, bool kFetch>
void segment_rows(const SegmentArgs& args, int row, SegmentState& state) {
  score_rows<S, kRows, kFetch>(args, row);
  for (int r = row; r < row + kRows; ++r) weigh_row<S>(args, r, state.largest[r], state.sum[r]);
  // As many sums as fit the registers beside the operands.
  constexpr int kPairs = (S::kRegisters - 6) / (2 * kRows) >= 2 ? 2 : 1;
  constexpr int kStep = 2 * S::kWidth;
  int d = 0;
  if (d + kPairs * kStep <= args.head_dim) {
    value_rows<S, kRows, kPairs, kFetch>(args, row, d, state.values);
    d += kPairs * kStep;
  }
  for (; d + kPairs * kStep <= args.head_dim; d += kPairs * kStep) {
    value_rows<S, kRows, kPairs, false>(args, row, d, state.values);
  }
  for (; d + kStep <= args.head_dim; d += kStep) value_rows<S, kRows, 1, false>(args, row, d, state.values);
  for (; d < args.head_dim; d += S::kWidth) {
    for (int r = row; r < row + kRows; ++r) value_tail<S>(args, r, d, state.values);
  }
}

// The first rows of a segment bring its values, and the keys that come next, into the cache.
template <class S, int kMaxRows, bool kFetch>
void segment_rows_any(const SegmentArgs& args, int row, int rows, SegmentState& state) {
  if constexpr (kMaxRows > 0) {
    if (rows == kMaxRows) return segment_rows<S, kMaxRows, kFetch>(args, row, state);
    segment_rows_any<S, kMaxRows - 1, kFetch>(args, row, rows, state);
  }
}

template <class S>
void segment(const SegmentArgs& args, SegmentState& state) {
  constexpr int kRows = S::kRegisters == 32 ? 8 : 4;
  segment_rows_any<S, kRows, true>(args, 0, std::min(kRows, args.num_rows), state);
  for (int row = kRows; row < args.num_rows; row += kRows) {
    segment_rows_any<S, kRows, false>(args, row, std::min(kRows, args.num_rows - row), state);
  }
}

// total = total and part together; part is the later one. n = head_dim.
template <class S>
void merge_values(float total_scale, float part_scale, const float* part, int64_t n, float* total) {
  const typename S::F a = S::set1(total_scale);
  const typename S::F b = S::set1(part_scale);
  for (int64_t d = 0; d < n; d += S::kWidth) {
    S::store(total + d, S::fma(S::load(total + d), a, S::mul(S::load(part + d), b)));
  }
}

}  // namespace zipage::cpu
