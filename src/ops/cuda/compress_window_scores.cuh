// What the ways to stage 1 share: the window's queries, and what a softmax's parts come to.
#pragma once

#include <climits>

#include "ops/cuda/compress_source.cuh"

namespace zipage::cuda {

inline constexpr int kRows = 8;  // window rows of one query head that a tensor-core tile holds
// On Hopper a warpgroup multiplies slots by lines: a line is one query head's row of the window, in the order [row
// tile, head, kRows].
inline constexpr int kLines = 64;  // those past the group's are zero
inline constexpr int kLineTiles = kLines / kRows;
static_assert(kLines == 2 * kWarpSize);

struct WindowScores {
  Source source;
  const bf16* ring;  // of the query slot: layer stride ring_layer, [ring_rows, num_heads, head_dim]
  int64_t ring_layer;
  int num_heads, group;
  int window, first_row_position, row_stride;  // rows, position of row 0, positions from a row to the next
  int ring_rows, oldest;                       // rows of the ring, and where row 0 lies in it
  int row_tiles;                               // of kRows window rows
  float scale_log2;
  float* scores;  // [units, num_slots]
};

// Where a window row lies in the ring.
__device__ __forceinline__ int ring_row(const WindowScores& a, int row) {
  return a.oldest + row < a.ring_rows ? a.oldest + row : a.oldest + row - a.ring_rows;
}
// The first head's query in row 0 of the ring; heads lie one after the other, num_heads of them a row.
__device__ __forceinline__ const bf16* unit_queries(const WindowScores& a, int unit, int head_dim) {
  return a.ring + a.source.layer(unit) * a.ring_layer + int64_t{a.source.head(unit)} * a.group * head_dim;
}

// The first window row that sees a slot; none sees one past the end.
__device__ __forceinline__ int first_row_seeing(const WindowScores& a, int unit, int slot) {
  const int num_slots = a.source.num_slots;
  if (slot >= num_slots) return INT_MAX;
  if (slot < num_slots - a.window * a.row_stride) return 0;
  const int behind = a.source.position(unit, slot) - a.first_row_position;
  return behind <= 0 ? 0 : (behind + a.row_stride - 1) / a.row_stride;
}

// Maximum and sum of 2^(z - maximum) of two parts of a row.
__device__ __forceinline__ float2 merge(float2 a, float2 b) {
  const float top = fmaxf(a.x, b.x);
  if (top == -INFINITY) return a;
  return make_float2(top, a.y * exp2_fast(a.x - top) + b.y * exp2_fast(b.x - top));
}

// log2 of a row's denominator; +inf: the row gives nothing.
__device__ __forceinline__ float offset_of(float2 row) {
  return row.y > 0.0F ? row.x + log2f(row.y) : INFINITY;
}

// values[2 n + e] of lane 4 g + t is of line 8 n + 2 t + e: combined over g, lane l gets lines 2 l and 2 l + 1.
template <typename Op>
__device__ __forceinline__ float2 combine_lines(const float (&values)[2 * kLineTiles]) {
  float left[2];
  share_out<Op, 16, 4>(values, left);
  return make_float2(left[0], left[1]);
}

WindowScores window_args(const WindowScoreParams&);

// Where a sequence's slots fit into a cluster of blocks, on Hopper.
bool serves_window_cluster(const Launch&, const WindowScores&);
void window_scores_cluster(const Launch&, const WindowScores&);

}  // namespace zipage::cuda
