// Stage 4's ways to R, before its softmax, for some scopes.
#pragma once

#include "ops/cuda/compress_source.cuh"

namespace zipage::cuda {

// Scope mean over content keys of heads that are rotated as a whole.
struct MeanRedundancy {
  Source source;
  const float* cos_sin;  // [num_positions, head_dim]
  int num_positions, num_units, slot_blocks;
  float* redundancy;  // [units, num_slots]
  float* inverse;     // [units, num_slots]
  float* sums;        // [units, slot_blocks, head_dim]
};
inline constexpr int kMeanSlots = 64;  // of a share of the sum
bool serves_mean_redundancy(int head_dim, int rotary_dim);
void mean_redundancy(const Launch&, const MeanRedundancy&);

// Scope lightning.
struct LightningRedundancy {
  Source source;
  const float* cos_sin;  // [positions, rotary_dim], or null: keys as they lie in the cache
  int rotary_dim;
  float threshold;
  float* redundancy;  // [units, num_slots]
  float* inverse;     // [units, num_slots]
};
inline constexpr int kLightningChunk = 256;  // slots
// What columns take off their rows is summed in fixed point, so the order is no matter.
inline constexpr float kFixedOne = 16777216.0F;
void lightning_redundancy(const Launch&, const LightningRedundancy&);
// The same with Hopper's own instructions, for the keys that it serves.
bool serves_lightning_hopper(const Launch&, const LightningRedundancy&);
void lightning_redundancy_hopper(const Launch&, const LightningRedundancy&);

// Scope exact: the search for last(n) with Hopper's own instructions, for units [first_unit, first_unit + num_units).
struct HopperSearch {
  Source source;
  const float* cos_sin;  // [positions, rotary_dim], or null: keys as they lie in the cache
  int rotary_dim;
  float threshold;
  float* inverse;  // [units, num_slots]
  // k^ in half precision as warpgroups multiply it (compress_key_panels.cuh), zeros past the end:
  // [num_units, ceil(num_slots / 64), head_dim / 64, 64, 64].
  const __half* keys;
  int first_unit, num_units;
  unsigned long long* last;  // out [units, num_slots], zeros before: last(n) + 1 and c[last(n), n]'s bits, or 0
  int* closed;               // scratch [units, ceil(num_slots / 64)], zeros before
};
bool serves_search_hopper(const Launch&, int head_dim);
void search_hopper(const Launch&, const HopperSearch&);

// sums [units, shares, head_dim]: each unit's first share becomes the sum of all.
void add_shares(const Launch&, float* sums, int units, int shares, int head_dim);

}  // namespace zipage::cuda
