// Stages 1 to 6 where two passes over K serve them (compress_passes.cuh): behind them a block a unit has a few numbers
// of every slot, from which come R', the scores weighed by the values' lengths, and stages 2, 3, 5 and 6.
#include <algorithm>
#include <utility>

#include "ops/cuda/compress_combine.cuh"
#include "ops/cuda/compress_passes.cuh"
#include "ops/cuda/tensor_map.h"

namespace zipage::cuda {
namespace {

// ---- numbers ----
constexpr int kThreads = 512;
constexpr int kOwn = 8;  // slots of a thread
static_assert(kThreads * kOwn == passes::kMostSlots);

struct Args {
  Combine combine;
  const float* norms;          // [units, num_slots], or null
  float *scores, *redundancy;  // [units, num_slots]: A |v|, R; then S where it is not pooled, R'
  float *pooled, *final_scores;
  float per_redundancy;  // 1 / (temperature * num_slots)
  ScoreCarry carry;
  float decay;
  int reach;  // of the pool
};

__global__ void __launch_bounds__(kThreads) final_scores_kernel(const __grid_constant__ Args a) {
  wait_for_previous();
  extern __shared__ float carried[];  // [num_slots]
  __shared__ float partial[kWarpSize];
  const Source& source = a.combine.source;
  const int unit = blockIdx.x, num_slots = source.num_slots, num_scored = source.num_scored;
  float* scores = a.scores + int64_t{unit} * num_slots;
  float* redundancy = a.redundancy + int64_t{unit} * num_slots;
  const float* norms = a.norms != nullptr ? a.norms + int64_t{unit} * num_slots : nullptr;
  float value[kOwn], score[kOwn], before[kOwn], norm[kOwn];
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    const int t = min(i * kThreads + static_cast<int>(threadIdx.x), num_slots - 1);
    value[i] = redundancy[t];
    score[i] = scores[t];
    norm[i] = norms != nullptr ? norms[t] : 0.0F;
  }
  if (a.carry != ScoreCarry::kOff && num_scored > 0) {
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const int t = min(i * kThreads + static_cast<int>(threadIdx.x), num_scored - 1);
      before[i] = source.scores[source.index(unit, t)];
    }
  }
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    const bool there = i * kThreads + static_cast<int>(threadIdx.x) < num_slots;
    value[i] = there ? value[i] * a.per_redundancy : -INFINITY;
    norm[i] = there ? norm[i] : 0.0F;
  }
  float maximum = -INFINITY, all_norms = 0.0F;
#pragma unroll
  for (int i = 0; i < kOwn; ++i) maximum = fmaxf(maximum, value[i]), all_norms += norm[i];
  maximum = block_reduce<Max>(maximum, partial);
  all_norms = block_reduce<Sum>(all_norms, partial);
  const float per_norm = all_norms > 0.0F ? static_cast<float>(num_slots) / all_norms : 0.0F;
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    const int t = i * kThreads + static_cast<int>(threadIdx.x);
    float s = norms != nullptr ? score[i] * (norm[i] * per_norm) : score[i];
    if (t < num_scored && a.carry != ScoreCarry::kOff) {
      const float old = a.decay * before[i];
      s = a.carry == ScoreCarry::kMax ? fmaxf(s, old) : s + old;
    }
    if (t < num_slots) carried[t] = s;
  }
  float sum = 0.0F;
#pragma unroll
  for (int i = 0; i < kOwn; ++i) sum += value[i] = expf(value[i] - maximum);
  const float share = 1.0F / block_reduce<Sum>(sum, partial);  // and `carried` is there
  float* kept = (a.reach > 0 ? a.pooled : a.scores) + int64_t{unit} * num_slots;
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    const int t = i * kThreads + threadIdx.x;
    if (t >= num_slots) break;
    float s = carried[t];
    if (t >= num_scored) {
      for (int n = max(t - a.reach, num_scored); n <= min(t + a.reach, num_slots - 1); ++n) s = fmaxf(s, carried[n]);
    }
    const float r = value[i] * share;
    kept[t] = s;
    redundancy[t] = r;
    a.final_scores[int64_t{unit} * num_slots + t] = a.combine.final_score(unit, t, s, r);
  }
}

// ---- launcher ----

int most_blocks(int num_sms) {
  return 2 * num_sms;
}

size_t padded(size_t bytes) {
  return (bytes + 255) / 256 * 256;
}

}  // namespace

size_t final_scores_scratch_bytes(const KvGeometry& g, int num_sms, int num_slots) {
  const size_t units = static_cast<size_t>(g.num_layers) * g.num_kv_heads;
  // A unit's blocks, of equal stretches, are no more than blocks / units and two cut ones.
  const size_t parts = static_cast<size_t>(most_blocks(num_sms)) + 2 * units;
  return padded(units * num_slots * sizeof(float)) + padded(parts * passes::kLines * sizeof(float2)) +
         padded(parts * passes::kTurns * g.head_dim * sizeof(float)) + padded(units * num_slots * sizeof(float));
}

bool serves_final_scores(const Launch& launch, const FinalScoresParams& p) {
  const CompressionParams& asked = p.params;
  const KvGeometry& g = p.source.kv.geometry;
  if (launch.compute_capability != 90 || g.dtype == DType::kF8E4M3 || (g.head_dim != 64 && g.head_dim != 128) ||
      p.rotary_dim != g.head_dim) {
    return false;
  }
  if (!asked.attention || asked.random || asked.scope != RedundancyScope::kMean ||
      asked.keys != RedundancyKeys::kContent || p.source.num_slots > passes::kMostSlots) {
    return false;
  }
  const WindowScores window = window_args(p.window());
  return window.row_tiles * window.group <= passes::kLineTiles;
}

void final_scores(const Launch& launch, const FinalScoresParams& p) {
  const CompressionParams& asked = p.params;
  const KvGeometry& g = p.source.kv.geometry;
  const int num_slots = p.source.num_slots;
  PassArgs a{.window = window_args(p.window()),
             .cos_sin = p.cos_sin,
             .num_positions = p.source.logical_len(),
             .box_rows = g.block_size % passes::kTile == 0 ? passes::kTile
                         : g.block_size % 32 == 0          ? 32
                                                           : 16,
             .value_norms = asked.value_norms,
             .redundancy = p.redundancy};
  const int units = a.window.source.num_units();
  a.tiles = ceil_div(num_slots, passes::kTile);
  a.all_tiles = a.tiles * units;
  a.per_block = ceil_div(a.all_tiles, most_blocks(launch.num_sms));
  for (int unit = 0; unit < units; ++unit) a.parts = std::max(a.parts, a.num_parts(unit));
  std::byte* next = p.scratch;
  const auto take = [&](size_t bytes) { return std::exchange(next, next + padded(bytes)); };
  const size_t parts = static_cast<size_t>(units) * a.parts;
  a.inverse = reinterpret_cast<float*>(take(static_cast<size_t>(units) * num_slots * sizeof(float)));
  a.stats = reinterpret_cast<float2*>(take(parts * passes::kLines * sizeof(float2)));
  a.sums = reinterpret_cast<float*>(take(parts * passes::kTurns * g.head_dim * sizeof(float)));
  a.norms = reinterpret_cast<float*>(take(static_cast<size_t>(units) * num_slots * sizeof(float)));
  const int blocks = ceil_div(a.all_tiles, a.per_block);
  const int64_t rows = int64_t{g.num_layers} * g.num_blocks * 2 * g.num_kv_heads * g.block_size;
  const CUtensorMap keys = make_tensor_map(p.source.kv.data, rows, g.head_dim, g.head_dim, a.box_rows);
  compress_first_pass(launch, a, keys, blocks);
  compress_second_pass(launch, a, keys, blocks);
  const Args rest{.combine = Combine(p.combine()),
                  .norms = asked.value_norms ? a.norms : nullptr,
                  .scores = p.scores,
                  .redundancy = p.redundancy,
                  .pooled = p.pooled,
                  .final_scores = p.final_scores,
                  .per_redundancy = 1.0F / (asked.temperature * static_cast<float>(num_slots)),
                  .carry = asked.carry,
                  .decay = asked.decay,
                  .reach = p.pools() ? asked.pool / 2 : 0};
  run(launch, final_scores_kernel, units, kThreads, num_slots * sizeof(float), rest);
}

}  // namespace zipage::cuda
