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
  int prompt_len = 0;  // tokens at positions [0, prompt_len) are the prompt

  int logical_len() const { return first_position + num_slots - num_scored; }
};

// Stage 1, with the w rows that the ring holds. A[t] = (1/w) sum_r max_{h in group} softmax_t(q[h,r] . k[t] * scale),
// slot t visible to row r when position(t) <= position(r). Row r is the token at ring.first_position(logical_len) +
// r * ring.stride.
struct WindowScoreParams {
  CompressionSource source;
  QueryRing ring;
  int query_slot = 0;
  int num_heads = 0;
  float scale = 0;
  float* scores = nullptr;       // out [num_layers, num_kv_heads, num_slots]
  std::byte* scratch = nullptr;  // Backend::compression_scratch_bytes(); null when that is 0
};

// Between stages 1 and 2. A[t] *= |v[t]| / mean |v| over the head's slots (0 when all values are 0): what attention
// takes from a slot is its weight times its value. In place. After VATP, arXiv 2406.12335, with the Euclidean norm.
struct ValueNormsParams {
  CompressionSource source;
  float* scores = nullptr;  // in/out [num_layers, num_kv_heads, num_slots]
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

// Stage 4. R' = softmax over all slots of R / (temperature * chunk length), R[m] = sum_{n != m, m != last(n)} c[m, n]
// within the chunk; scope mean: R[m] = k^[m] . u over all slots. keys content: RoPE is undone at each slot's position
// first.
struct RedundancyParams {
  CompressionSource source;
  RedundancyScope scope = RedundancyScope::kExact;
  RedundancyKeys keys = RedundancyKeys::kContent;
  float threshold = 0.5F;
  float temperature = 0.4F;
  const float* cos_sin = nullptr;  // as QkvRopeAppendParams
  int rotary_dim = 0;
  float* redundancy = nullptr;   // out [num_layers, num_kv_heads, num_slots]
  std::byte* scratch = nullptr;  // Backend::compression_scratch_bytes(); null when that is 0
};

// What keeps the logarithms of kLog finite: added to T S, and the least that T R' counts as.
inline constexpr float kLeastScore = 1e-3F, kLeastRedundancy = 1e-30F;

// Stages 5 and 6. F of S and R' as params.combine says, then +inf for
// the window, the first `sinks` slots, the newest `recent` slots and the protected part of the prompt. Without
// redundancy F = S; S null counts as 0; random: F in [0, 1) is a hash of (seed, layer, head, position), so what it
// keeps is uniform over all the sequence ever had.
struct CombineParams {
  CompressionSource source;
  CompressionParams params;
  const float* scores = nullptr;      // S [num_layers, num_kv_heads, num_slots] or null
  const float* redundancy = nullptr;  // R' or null
  float* out = nullptr;               // F [num_layers, num_kv_heads, num_slots]; must not alias scores
};

// Stages 1 to 6 in one: S and F of every slot by all that params asks for.
struct FinalScoresParams {
  CompressionSource source;
  CompressionParams params;
  // Of stage 1; unused when params.attention is off.
  QueryRing ring;
  int query_slot = 0;
  int num_heads = 0;
  float scale = 0;
  // Of stage 4.
  const float* cos_sin = nullptr;
  int rotary_dim = 0;
  // Each [num_layers, num_kv_heads, num_slots]; no two alias.
  float* scores = nullptr;        // A, and S where nothing is pooled
  float* pooled = nullptr;        // S where it is
  float* redundancy = nullptr;    // R'
  float* final_scores = nullptr;  // out: F
  std::byte* scratch = nullptr;   // Backend::compression_scratch_bytes(); null when that is 0

  bool pools() const { return params.attention && params.pool > 1; }
  // Where S lies afterwards; null: no stage makes one.
  float* kept_scores() const { return !params.attention ? nullptr : pools() ? pooled : scores; }

  WindowScoreParams window() const { return {source, ring, query_slot, num_heads, scale, scores, scratch}; }
  RedundancyParams of_keys() const {
    return {.source = source,
            .scope = params.scope,
            .keys = params.keys,
            .threshold = params.threshold,
            .temperature = params.temperature,
            .cos_sin = cos_sin,
            .rotary_dim = rotary_dim,
            .redundancy = redundancy,
            .scratch = scratch};
  }
  CombineParams combine() const {
    return {.source = source,
            .params = params,
            .scores = kept_scores(),
            .redundancy = params.scope == RedundancyScope::kOff ? nullptr : redundancy,
            .out = final_scores};
  }
};

// Stage 7. The `budget` slots of highest F, newer first among equals, written in sequence order. whole_blocks: F of a
// slot is the mean over its block of source slots, blocks with a protected slot come before the others; so blocks stay
// or go whole, but for the one that the budget cuts, of which the newest slots stay. Protected slots always stay.
struct SelectParams {
  CompressionSource source;
  int budget = 0;
  bool whole_blocks = false;
  const float* final_scores = nullptr;  // F [num_layers, num_kv_heads, num_slots]
  int32_t* kept = nullptr;              // out [num_layers, num_kv_heads, budget] slot indices t, ascending
};

// Stage 8. K, V, S (unless null) and position of kept slots into target_blocks, in order. Targets may be blocks of the
// source, each at or behind its own index there: then a write never lands on a kept slot that has not been read (C1).
// The last num_retained are the source's last blocks, full and kept whole: of their slots only S and position are
// written.
struct CompactParams {
  CompressionSource source;
  int budget = 0;
  int num_retained = 0;
  const int32_t* kept = nullptr;           // [num_layers, num_kv_heads, budget]
  const float* scores = nullptr;           // S [num_layers, num_kv_heads, num_slots] or null
  const int32_t* target_blocks = nullptr;  // device [budget / block_size]
};

}  // namespace zipage
