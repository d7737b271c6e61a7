// What the stages' kernels share: one layer and KV head ("unit") of a sequence's resident slots.
#pragma once

#include <bit>

#include "ops/cuda/device.cuh"
#include "ops/cuda/launch.h"

namespace zipage::cuda {

// Of a part of the scratch memory.
constexpr size_t padded(size_t bytes) {
  return (bytes + 255) / 256 * 256;
}

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

// Of a value's elements, in bf16 or fp8.
__device__ __forceinline__ float squares(uint4 v) {
  float x[8];
  unpack8(v, x);
  float sum = 0;
#pragma unroll
  for (float e : x) sum += e * e;
  return sum;
}

__device__ __forceinline__ float squares(uint2 v) {
  float sum = 0;
#pragma unroll
  for (const uint32_t word : {v.x, v.y}) {
    const float2 a = fp8x2_to_float2(word), b = fp8x2_to_float2(word >> 16U);
    sum += a.x * a.x + a.y * a.y + b.x * b.x + b.y * b.y;
  }
  return sum;
}

// Both halves of a key's elements as RoPE turns them, or back.
template <bool kBack, int kCount, typename Angles>
__device__ __forceinline__ void turn(float (&x)[2][kCount], const Angles& by) {
#pragma unroll
  for (int e = 0; e < kCount; ++e) {
    const float low = x[0][e], high = x[1][e], sine = kBack ? -by.sine[e] : by.sine[e];
    x[0][e] = fmaf(low, by.cosine[e], -high * sine);
    x[1][e] = fmaf(high, by.cosine[e], low * sine);
  }
}

// Keys of slots [t, t + kSegment) of a unit in bf16 to shared memory, by a warp: 16-byte chunk `chunk` of slot t + i to
// place(i, chunk), zeros past the end. They are there after copy_commit() and copy_wait().
template <int kHeadDim, bool kFp8, typename Place>
__device__ __forceinline__ void load_segment(const Source& source, int unit, int t, const Place& place) {
  constexpr int kChunks = kHeadDim / (kFp8 ? 16 : 8);  // of a key in the cache
  const int lane = threadIdx.x % kWarpSize, valid = source.num_slots - t;
  // An address is needed even where nothing is read.
  const std::byte* from = (valid > 0 ? source.key_row(unit, t) : source.kv.data) + lane * 16;
#pragma unroll
  for (int i = 0; i < kSegment * kChunks / kWarpSize; ++i) {
    const int c = i * kWarpSize + lane, slot = c / kChunks, chunk = c % kChunks;
    if constexpr (kFp8) {
      const uint4 v =
          slot < valid ? *reinterpret_cast<const uint4*>(from + i * kWarpSize * 16) : make_uint4(0, 0, 0, 0);
      *reinterpret_cast<uint4*>(place(slot, 2 * chunk)) = fp8x8_to_bf16x8(make_uint2(v.x, v.y));
      *reinterpret_cast<uint4*>(place(slot, 2 * chunk + 1)) = fp8x8_to_bf16x8(make_uint2(v.z, v.w));
    } else {
      copy_async16(shared_address(place(slot, chunk)), from + i * kWarpSize * 16, slot < valid);
    }
  }
}

}  // namespace zipage::cuda
