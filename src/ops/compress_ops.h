// Params of the compression's stages, for one sequence, all layers and KV heads at once.
//
// Resident slots of the sequence are numbered t = 0 .. num_slots-1 in sequence order; slot t lies in
// source_blocks[t / block_size] at t % block_size. Slots [0, num_scored) were kept by an earlier compression: their
// scores and positions lie in the pool, per layer and KV head. Slots [num_scored, num_slots) came after it; slot t of
// them has position first_position + (t - num_scored). So C9 holds without storing positions on every append.
//
//      |---------- num_scored ----------|-------- new --------|
//      0     positions, S in the pool    first_position + ...  num_slots
//                                                  |- window -|
#pragma once

#include "ops/ops.h"
#include "zipage/compression.h"

namespace zipage {

struct CompressionSource {
  KvPool kv;
  const int32_t* source_blocks = nullptr;  // device [ceil(num_slots / block_size)]
  int num_slots = 0;                       // T
  int num_scored = 0;
  int first_position = 0;
  int prompt_len = 0;                      // tokens at positions [0, prompt_len) are the prompt

  int logical_len() const { return first_position + num_slots - num_scored; }
};

// Stage 1. A[t] = (1/w) sum_r max_{h in group} softmax_t(q[h,r] . k[t] * scale), slot t visible to row r when
// position(t) <= position(r). Rows r are the last `window` tokens, positions [logical_len - window, logical_len).
struct WindowScoreParams {
  CompressionSource source;
  QueryRing ring;
  int query_slot = 0;
  int num_heads = 0;
  float scale = 0;
  float* scores = nullptr;     // out [num_layers, num_kv_heads, num_slots]
  float* workspace = nullptr;  // [num_layers, num_heads, window, num_slots] or null where a backend needs none
};

// Stage 2. S[t] = max(A[t], decay * S_prev[t]) (or the sum) for t < num_scored. In place.
struct CarryParams {
  CompressionSource source;
  ScoreCarry carry = ScoreCarry::kMax;
  float decay = 0.8F;
  float* scores = nullptr;  // in/out [num_layers, num_kv_heads, num_slots]
};

// Stage 3. Maximum over `width` neighbours, only over and for slots t >= num_scored.
struct PoolScoresParams {
  CompressionSource source;
  int width = 5;
  const float* scores = nullptr;  // [num_layers, num_kv_heads, num_slots]
  float* out = nullptr;           // same shape; must not alias
};

// Stage 4. R' = softmax over all slots of R / (temperature * chunk length), R[m] = sum_{n != m, m != last(n)} c[m, n] within
// the chunk; scope mean: R[m] = k^[m] . u over all slots. keys content: RoPE is undone at each slot's position first.
struct RedundancyParams {
  CompressionSource source;
  RedundancyScope scope = RedundancyScope::kExact;
  RedundancyKeys keys = RedundancyKeys::kContent;
  float threshold = 0.5F;
  float temperature = 0.4F;
  const float* cos_sin = nullptr;  // as QkvRopeAppendParams
  int rotary_dim = 0;
  float* redundancy = nullptr;     // out [num_layers, num_kv_heads, num_slots]
  std::byte* workspace = nullptr;  // redundancy_workspace_bytes(); device
};

// Stages 5 and 6. F = lambda * S - (1 - lambda) * R' (redundancy null: F = S; random: a seeded hash), then +inf for the
// window, the first `sinks` positions, the newest `recent` slots and the protected part of the prompt.
struct CombineParams {
  CompressionSource source;
  CompressionParams params;
  const float* scores = nullptr;      // S
  const float* redundancy = nullptr;  // R' or null
  float* out = nullptr;               // F [num_layers, num_kv_heads, num_slots]; must not alias scores
};

// Stage 7. The `budget` slots of highest F, newer first among equals, written in sequence order. whole_blocks: blocks of
// `block_size` source slots by the mean of S, protected blocks first, newest first among equals.
struct SelectParams {
  CompressionSource source;
  int budget = 0;
  bool whole_blocks = false;
  const float* final_scores = nullptr;  // F
  const float* scores = nullptr;        // S, for whole_blocks
  int32_t* kept = nullptr;              // out [num_layers, num_kv_heads, budget] slot indices t, ascending
};

// Stage 8. K, V, S and position of kept slots into target_blocks, in order. Targets may be blocks of the source: a
// write never lands on a kept slot that has not been read (C1).
struct CompactParams {
  CompressionSource source;
  int budget = 0;
  const int32_t* kept = nullptr;           // [num_layers, num_kv_heads, budget]
  const float* scores = nullptr;           // S [num_layers, num_kv_heads, num_slots]
  const int32_t* target_blocks = nullptr;  // device [budget / block_size]
};

}  // namespace zipage
