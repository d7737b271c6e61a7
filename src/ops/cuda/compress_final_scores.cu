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
constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarpSize;
constexpr int kOwnStep = 3;  // slots of a thread are a multiple of it, and so known to be there but for the last ones
constexpr int kMostReach = 1024;  // of a pool: new slots and what lies on both sides of them fit in shared memory
static_assert((passes::kMostSlots + 2 * kMostReach + 3 * kWarps) * sizeof(float) <= 48 * 1024);

struct Args {
  Combine combine;
  const float* norms;          // [units, num_slots], or null
  float *scores, *redundancy;  // [units, num_slots]: A |v|, R; then S where it is not pooled, R'
  float *pooled, *final_scores;
  float per_redundancy;  // log2(e) / (temperature * num_slots)
  ScoreCarry carry;
  float decay;
  int reach;                // of the pool
  uint32_t per_block_size;  // 2^32 / block size, rounded up: slot numbers are so small that it divides them exactly
};

// ---- kernels ----

// Over the block, of what every warp has left in `partial`.
template <typename Op>
__device__ __forceinline__ float reduce_warps(const float (&partial)[kWarps]) {
  float v = partial[threadIdx.x % kWarps];
#pragma unroll
  for (int offset = kWarps / 2; offset > 0; offset >>= 1) v = Op::combine(v, __shfl_xor_sync(kFullMask, v, offset));
  return v;
}

template <int kOwn>
__global__ void __launch_bounds__(kThreads, kOwn <= 9 ? 3 : 2) final_scores_kernel(const __grid_constant__ Args a) {
  let_next_start();
  extern __shared__ float fresh[];  // [reach + num_slots - num_scored + reach]: S of new slots, -inf on both sides
  __shared__ float maxima[kWarps], norm_sums[kWarps], sums[kWarps];
  const Source& source = a.combine.source;
  const int unit = blockIdx.x, num_slots = source.num_slots, num_scored = source.num_scored;
  const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
#pragma unroll 1
  for (int i = threadIdx.x; i < 2 * a.reach; i += kThreads) {
    fresh[i < a.reach ? i : num_slots - num_scored + i] = -INFINITY;
  }
  wait_till_previous_ended();

  const int64_t first = int64_t{unit} * num_slots + threadIdx.x;  // the thread's
  const float *from_scores = a.scores + first, *from_norms = a.norms + first;
  float* redundancy = a.redundancy + first;
  const auto slot = [&](int i) { return i * kThreads + static_cast<int>(threadIdx.x); };
  const auto there = [&](int i) { return i < kOwn - kOwnStep || slot(i) < num_slots; };
  float value[kOwn], score[kOwn], before[kOwn], norm[kOwn];
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    value[i] = there(i) ? redundancy[i * kThreads] : -INFINITY;
    score[i] = there(i) ? from_scores[i * kThreads] : 0.0F;
  }
  if (a.norms != nullptr) {
#pragma unroll
    for (int i = 0; i < kOwn; ++i) norm[i] = there(i) ? from_norms[i * kThreads] : 0.0F;
  }
  const bool carries = a.carry != ScoreCarry::kOff && num_scored > 0;
  if (carries) {
    // Of the pool, whose layers have far fewer than 2^31 slots. All loads are on their way before one is waited for.
    const float* old = source.scores + score_index(source.geometry, source.layer(unit), 0, source.head(unit), 0);
    asm volatile("" : "+l"(old));  // else every slot's address is worked out from the unit's number
    __builtin_assume(__isGlobal(old));
    const int block_size = source.kv.block_size, per_block = source.kv.num_kv_heads * block_size;
    int index[kOwn];
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const int t = min(slot(i), num_scored - 1), at = static_cast<int>(__umulhi(t, a.per_block_size));
      index[i] = source.blocks[at] * per_block + (t - at * block_size);
    }
#pragma unroll
    for (int i = 0; i < kOwn; ++i) before[i] = old[index[i]];
  }

  float maximum = value[0], all_norms = 0.0F;
#pragma unroll
  for (int i = 1; i < kOwn; ++i) maximum = fmaxf(maximum, value[i]);
  maximum = warp_reduce<Max>(maximum);
  if (a.norms != nullptr) {
#pragma unroll
    for (int i = 0; i < kOwn; ++i) all_norms += norm[i];
    all_norms = warp_reduce<Sum>(all_norms);
  }
  if (lane == 0) maxima[warp] = maximum, norm_sums[warp] = all_norms;
  __syncthreads();
  maximum = reduce_warps<Max>(maxima) * a.per_redundancy;
  float sum = 0.0F;
#pragma unroll
  for (int i = 0; i < kOwn; ++i) sum += value[i] = exp2_fast(fmaf(value[i], a.per_redundancy, -maximum));
  sum = warp_reduce<Sum>(sum);
  if (lane == 0) sums[warp] = sum;

  if (a.norms != nullptr) {
    all_norms = reduce_warps<Sum>(norm_sums);
    const float per_norm = all_norms > 0.0F ? static_cast<float>(num_slots) / all_norms : 0.0F;
#pragma unroll
    for (int i = 0; i < kOwn; ++i) score[i] *= norm[i] * per_norm;
  }
  if (carries) {
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const float old = a.decay * before[i];
      const float s = a.carry == ScoreCarry::kMax ? fmaxf(score[i], old) : score[i] + old;
      if (slot(i) < num_scored) score[i] = s;
    }
  }
  float* const own_fresh = fresh + a.reach - num_scored + threadIdx.x;
  if (a.reach > 0) {
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      if (slot(i) >= num_scored && there(i)) own_fresh[i * kThreads] = score[i];
    }
  }
  __syncthreads();
  const float share = 1.0F / reduce_warps<Sum>(sums);

  float *kept = (a.reach > 0 ? a.pooled : a.scores) + first, *final_scores = a.final_scores + first;
  if (a.reach > 0) {
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      if (slot(i) < num_scored || !there(i)) continue;
#pragma unroll 1
      for (int n = 1; n <= a.reach; ++n) {
        score[i] = fmaxf(score[i], fmaxf(own_fresh[i * kThreads - n], own_fresh[i * kThreads + n]));
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    value[i] *= share;
    if (there(i)) kept[i * kThreads] = score[i], redundancy[i * kThreads] = value[i];
  }
  const auto write_final_scores = [&](const auto& weigh) {
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const float weighed = weigh(score[i], value[i]);
      if (there(i)) final_scores[i * kThreads] = a.combine.keeps_by_slot(slot(i)) ? INFINITY : weighed;
    }
  };
  if (a.combine.combine == ScoreCombine::kLog) {
    write_final_scores([&](float s, float r) { return a.combine.weigh_logs(s, r); });
  } else {
    write_final_scores([&](float s, float r) { return a.combine.weigh(s, r); });
  }
  if (a.combine.asks_positions()) {
#pragma unroll 1
    for (int i = 0; slot(i) < num_slots; ++i) {
      final_scores[i * kThreads] = a.combine.final_score(unit, slot(i), kept[i * kThreads], redundancy[i * kThreads]);
    }
  }
}

// ---- launcher ----

int most_blocks(int num_sms) {
  return 2 * num_sms;
}

}  // namespace

size_t final_scores_scratch_bytes(const KvGeometry& g, int num_sms, int num_slots) {
  const size_t units = static_cast<size_t>(g.num_layers) * g.num_kv_heads;
  // A unit's blocks, of equal stretches, are no more than blocks / units and two cut ones.
  const size_t parts = static_cast<size_t>(most_blocks(num_sms)) + 2 * units;
  return padded(units * num_slots * sizeof(float)) + padded(parts * kLines * sizeof(float2)) +
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
      asked.keys != RedundancyKeys::kContent || p.source.num_slots > passes::kMostSlots ||
      asked.pool / 2 > kMostReach) {
    return false;
  }
  const WindowScores window = window_args(p.window());
  return window.row_tiles * window.group <= kLineTiles;
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
  a.stats = reinterpret_cast<float2*>(take(parts * kLines * sizeof(float2)));
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
                  .per_redundancy = kLog2e / (asked.temperature * static_cast<float>(num_slots)),
                  .carry = asked.carry,
                  .decay = asked.decay,
                  .reach = p.pools() ? asked.pool / 2 : 0,
                  .per_block_size = 0xffffffffU / static_cast<uint32_t>(g.block_size) + 1};
  const size_t shared_bytes = (num_slots - a.window.source.num_scored + 2 * rest.reach) * sizeof(float);
  dispatch<3, 6, 9, 12, 15, 18>(ceil_div(num_slots, kThreads * kOwnStep) * kOwnStep, [&]<int kOwn>() {
    static_assert(kOwn % kOwnStep == 0);
    run(launch, final_scores_kernel<kOwn>, units, kThreads, shared_bytes, rest);
  });
}

}  // namespace zipage::cuda
