// Stage 4's way for scope mean over content keys of heads that are rotated as a whole.
#pragma once

#include "ops/cuda/compress_source.cuh"

namespace zipage::cuda {

inline constexpr int kMeanSlots = 64;  // of a share of the sum

struct MeanRedundancy {
  Source source;
  const float* cos_sin;  // [num_positions, head_dim]
  int num_positions, num_units, slot_blocks;
  float* redundancy;  // [units, num_slots]
  float* inverse;     // [units, num_slots]
  float* sums;        // [units, slot_blocks, head_dim]
};

bool serves_mean_redundancy(int head_dim, int rotary_dim);
// Leaves R in `redundancy`, before its softmax.
void mean_redundancy(const Launch&, const MeanRedundancy&);

}  // namespace zipage::cuda
