// What the stages' kernels share: one layer and KV head ("unit") of a sequence's resident slots.
#pragma once

#include <bit>

#include "ops/cuda/device.cuh"
#include "ops/cuda/launch.h"

namespace zipage::cuda {

inline constexpr int kSegment = 16;  // slots that lie one after the other: blocks are multiples of it

struct Source {
  KvLayout kv;
  const int32_t* blocks;
  const float* scores;       // of the pool
  const int32_t* positions;  // of the pool
  const float* k_scale;      // fp8 only
  KvGeometry geometry;
  int num_slots, num_scored, first_position;
  int block_shift;  // log2 of the block size, or -1: a division costs as much as a key's arithmetic

  explicit Source(const CompressionSource& s)
      : kv(s.kv),
        blocks(s.source_blocks),
        scores(s.kv.scores),
        positions(s.kv.positions),
        k_scale(s.kv.k_scale),
        geometry(s.kv.geometry),
        num_slots(s.num_slots),
        num_scored(s.num_scored),
        first_position(s.first_position),
        block_shift(std::has_single_bit(static_cast<unsigned>(s.kv.geometry.block_size))
                        ? std::countr_zero(static_cast<unsigned>(s.kv.geometry.block_size))
                        : -1) {}

  int num_units() const { return geometry.num_layers * geometry.num_kv_heads; }

#ifdef __CUDACC__
  __device__ int layer(int unit) const {
    return unit / geometry.num_kv_heads;
  }
  __device__ int head(int unit) const {
    return unit % geometry.num_kv_heads;
  }
  // Of the table: where slot t's block stands.
  __device__ int entry(int t) const {
    return block_shift >= 0 ? t >> block_shift : t / kv.block_size;
  }
  __device__ std::byte* key_row(int unit, int t) const {
    const int at = entry(t);
    return kv.key_row(layer(unit), blocks[at], head(unit), t - at * kv.block_size);
  }
  // Of the pool's scores and positions.
  __device__ int64_t index(int unit, int t) const {
    const int at = entry(t);
    return score_index(geometry, layer(unit), blocks[at], head(unit), t - at * kv.block_size);
  }
  __device__ int position(int unit, int t) const {
    return t < num_scored ? positions[index(unit, t)] : first_position + (t - num_scored);
  }
#endif
};

}  // namespace zipage::cuda
