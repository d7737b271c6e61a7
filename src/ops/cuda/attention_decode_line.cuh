// What the ways to decode attention share: arguments, how the work is cut (attention_decode.cu says how), places in the
// line of all tiles, and what the parts of a unit add up to.
#pragma once

#include "ops/cuda/device.cuh"
#include "ops/cuda/launch.h"

namespace zipage::cuda {

// Of K and V, that a unit's end is worth: about 2 microseconds of a block, at its share of the memory's speed.
inline constexpr int kUnitBytes = 72 * 1024;

// What qkv_rope_append does to the step's tokens, where attention does it in passing.
struct AppendArgs {
  const float *q_norm, *k_norm, *cos_sin;
  float eps;
  const int32_t *positions, *slot_mapping, *ring_rows;
  bf16* ring;  // [num_layers, num_ring_rows, num_heads, head_dim] or null
  int num_ring_rows;
};

struct DecodeArgs {
  const bf16* q;  // with an append [num_tokens, num_heads + 2 num_kv_heads, head_dim]: K and V behind it
  int64_t q_stride;
  bf16* out;
  int64_t out_stride;
  int num_seqs, num_heads, group, layer, max_blocks_per_seq;
  int num_tokens, num_batch_seqs;  // of the whole batch
  float scale;
  const int32_t *query_start_loc, *seq_lens, *block_table;
  KvLayout kv;
  const float *k_scale, *v_scale;  // [num_layers, num_kv_heads], fp8 only
  float* partial_out;              // [2 * gridDim.x, group, head_dim]
  float2* partial_stats;           // [2 * gridDim.x, group] reference (of scaled log2 scores) and sum
  int32_t* counters;               // [units] zero
  AppendArgs append;
};

// The same with Hopper's own instructions, for the shapes that it serves.
bool serves_decode_hopper(const Launch&, const AttentionParams&);
void attention_decode_hopper(const Launch&, const AttentionParams&, const DecodeArgs&);

// What a block works on: [begin, end) of the line.
struct Piece {
  int begin, end;
};

// A block's, of equal ones.
__device__ __forceinline__ Piece equal_piece(int total, int per_block) {
  const int block = static_cast<int>(blockIdx.x);
  return {min(block * per_block, total), min((block + 1) * per_block, total)};
}

// Where a tile of the line lies. Tiles are visited in order, so moving on costs a comparison.
template <int kUnitCost>
struct Cursor {
  int seq, head, tile, num_tiles;  // of the unit
  int seq_len;

  // Returns where in the line the tile lies: at `position`, or behind the unit's cost if that is there.
  __device__ int seek(const int* first, int num_seqs, int num_kv_heads, int position, const int32_t* seq_lens) {
    int low = 0, high = num_seqs;  // the last seq with first[seq] * num_kv_heads <= position
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      if (first[middle] * num_kv_heads <= position)
        low = middle;
      else
        high = middle;
    }
    enter(low, first, seq_lens);
    const int rest = position - first[seq] * num_kv_heads;
    head = rest / (num_tiles + kUnitCost);
    const int behind_cost = rest % (num_tiles + kUnitCost) - kUnitCost;
    tile = max(behind_cost, 0);
    return position + tile - behind_cost;
  }
  __device__ void enter(int next, const int* first, const int32_t* seq_lens) {
    seq = next;
    num_tiles = first[seq + 1] - first[seq] - kUnitCost;
    seq_len = seq_lens[seq];
  }
  // To the first tile of the next unit that has tiles; true when it is another sequence's.
  __device__ bool next_unit(const int* first, int num_kv_heads, const int32_t* seq_lens) {
    tile = 0;
    if (++head < num_kv_heads) return false;
    head = 0;
    int next = seq + 1;
    while (first[next + 1] == first[next]) ++next;
    enter(next, first, seq_lens);
    return true;
  }
};

// [0, num_seqs] running sums of the sequences' shares of the line, by the whole block; warp_sums [warps].
template <int kTile, int kUnitCost>
__device__ void sum_tiles(const int32_t* seq_lens, int num_seqs, int* first_tile, int* warp_sums) {
  const int threads = blockDim.x, lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
  int carry = 0;
  for (int base = 0; base < num_seqs; base += threads) {
    const int i = base + threadIdx.x;
    const int tiles = i < num_seqs ? ceil_div(seq_lens[i], kTile) : 0;
    const int own = tiles > 0 ? tiles + kUnitCost : 0;
    int sum = own;
#pragma unroll
    for (int offset = 1; offset < kWarpSize; offset <<= 1) {
      const int other = __shfl_up_sync(kFullMask, sum, offset);
      if (lane >= offset) sum += other;
    }
    if (lane == kWarpSize - 1) warp_sums[warp] = sum;
    __syncthreads();
    int before = carry, total = carry;
    for (int w = 0; w < threads / kWarpSize; ++w) {
      if (w < warp) before += warp_sums[w];
      total += warp_sums[w];
    }
    if (i < num_seqs) first_tile[i] = before + sum - own;
    carry = total;
    __syncthreads();
  }
  if (threadIdx.x == 0) first_tile[num_seqs] = carry;
  __syncthreads();
}

// Padding rows own no tiles, tokens behind the last sequence no row at all; their output is zero. By `threads` threads
// of every block, from thread 0 on.
template <int kHeadDim>
__device__ __forceinline__ void clear_padding(const DecodeArgs& a, const int* first_tile, int threads) {
  const auto clear = [&](int64_t token) {
    for (int i = threadIdx.x; i < a.num_heads * kHeadDim; i += threads) a.out[token * a.out_stride + i] = bf16(0.0F);
  };
  for (int seq = blockIdx.x; seq < a.num_seqs; seq += gridDim.x) {
    if (first_tile[seq + 1] == first_tile[seq]) clear(a.query_start_loc[seq]);
  }
  for (int token = a.query_start_loc[a.num_batch_seqs] + blockIdx.x; token < a.num_tokens; token += gridDim.x)
    clear(token);
}

// What the parts of one head's element add up to: each has its sums relative to a reference, 2^-reference of them; a
// part without any slot has -inf and 0.
struct Merged {
  float reference = -INFINITY, sum = 0.0F, out = 0.0F;
  __device__ void add(float2 stats, float value) {
    if (stats.x == -INFINITY) return;
    const float next = fmaxf(reference, stats.x);
    const float own = exp2_fast(reference - next), other = exp2_fast(stats.x - next);
    sum = sum * own + stats.y * other;
    out = out * own + value * other;
    reference = next;
  }
};

// Of a unit that this block has worked on.
struct UnitEnd {
  bf16* out;              // [group, head_dim]
  float* partial_out;     // [2 * blocks, group, head_dim]
  float2* partial_stats;  // [2 * blocks, group] reference (of scaled log2 scores) and sum
  int32_t* counter;       // of blocks that have left their part
  int64_t part;           // this block's
  int begin;              // of the unit in the line
  int first_block, last_block, per_block;
  int group;
  float v_scale;

  // Of two parts of a block the first one is of the unit that its piece begins with.
  __device__ int64_t part_of(int block) const { return 2 * int64_t{block} + (block * per_block >= begin ? 0 : 1); }
};

// The end of the unit whose segment in the piece begins at `position`.
template <int kHeadDim, int kUnitCost>
__device__ __forceinline__ UnitEnd end_of(const DecodeArgs& a, const Cursor<kUnitCost>& unit, const Piece& piece,
                                          int position, int per_block, float v_scale) {
  const int begin = position - unit.tile;
  return {.out = a.out + a.query_start_loc[unit.seq] * a.out_stride + int64_t{unit.head} * a.group * kHeadDim,
          .partial_out = a.partial_out,
          .partial_stats = a.partial_stats,
          .counter = &a.counters[unit.seq * a.kv.num_kv_heads + unit.head],
          .part = 2 * int64_t{blockIdx.x} + (position == piece.begin ? 0 : 1),
          .begin = begin,
          .first_block = begin / per_block,
          .last_block = (begin + unit.num_tiles - 1) / per_block,
          .per_block = per_block,
          .group = a.group,
          .v_scale = v_scale};
}

// Writes the unit's output if the block has all of it, else the block's part; the last block to come adds the parts up,
// in the order of the blocks. By `threads` threads, `thread` being the caller's number; own(i, head) is what the block
// has of element i of [group, head_dim], sync a barrier of these threads, is_last in shared memory.
template <int kHeadDim, typename Own, typename Sync>
__device__ __forceinline__ void finish_unit(const UnitEnd& u, bool alone, int thread, int threads, const Own& own,
                                            const Sync& sync, int& is_last) {
  for (int i = thread; i < u.group * kHeadDim; i += threads) {
    const int head = i / kHeadDim;
    const Merged merged = own(i, head);
    if (alone) {
      u.out[i] = bf16(merged.out / merged.sum * u.v_scale);
    } else {
      u.partial_out[u.part * u.group * kHeadDim + i] = merged.out;
      if (i % kHeadDim == 0) u.partial_stats[u.part * u.group + head] = make_float2(merged.reference, merged.sum);
    }
  }
  if (alone) return;
  __threadfence();
  sync();
  if (thread == 0) is_last = atomicAdd(u.counter, 1) == u.last_block - u.first_block;
  sync();
  if (is_last == 0) return;
  __threadfence();
  for (int i = thread; i < u.group * kHeadDim; i += threads) {
    Merged merged;
#pragma unroll 4
    for (int b = u.first_block; b <= u.last_block; ++b) {
      const int64_t part = u.part_of(b);
      merged.add(__ldcg(&u.partial_stats[part * u.group + i / kHeadDim]),
                 __ldcg(&u.partial_out[part * u.group * kHeadDim + i]));
    }
    u.out[i] = bf16(merged.out / merged.sum * u.v_scale);
  }
  if (thread == 0) *u.counter = 0;
}

}  // namespace zipage::cuda
