// Where K and V lie inside a block on the CPU. One layer's part of the pool is
//
//   [num_blocks][num_kv_heads] x { K: bf16 [block_size / 16][head_dim / 2][16 slots][2] | V: bf16
//   [block_size][head_dim] }
//
// K is kept in tiles of 16 slots with the slot as the vector lane, so q.k of 16 slots needs no horizontal sum: the 64
// bytes of one pair of elements are one AVX-512 register. A row of V is contiguous. K and V of one head of a block are
// adjacent and read front to back.
//
// Thread-safety: views, freely copied. Writers of different slots of one tile touch the same cache lines but never the
// same bytes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/check.h"
#include "ops/ops.h"
#include "tensor/bf16.h"

namespace zipage::cpu {

constexpr int kTileSlots = 16;

// Elements of K, and as many of V, of one KV head in one block.
inline int64_t kv_head_elements(const KvGeometry& geometry) {
  return static_cast<int64_t>(geometry.block_size) * geometry.head_dim;
}
// Bytes of one layer's K and V in one block.
inline size_t kv_block_bytes(const KvGeometry& geometry) {
  return static_cast<size_t>(2 * kv_head_elements(geometry)) * sizeof(Bf16) * geometry.num_kv_heads;
}

// Index of element (slot, d) of K from keys(); REQUIRES 0 <= slot < block_size.
inline int64_t key_index(int slot, int d, int head_dim) {
  return static_cast<int64_t>(slot / kTileSlots) * kTileSlots * head_dim +
         static_cast<int64_t>(d / 2) * 2 * kTileSlots + static_cast<int64_t>(slot % kTileSlots) * 2 + d % 2;
}

// One layer of the pool. `block` is a pool block id, `head` a KV head, `slot` a slot within the block.
class KvLayerView {
 public:
  KvLayerView(const KvPool& pool, int layer)
      : block_size_(pool.geometry.block_size),
        head_dim_(pool.geometry.head_dim),
        num_kv_heads_(pool.geometry.num_kv_heads),
        head_elements_(kv_head_elements(pool.geometry)) {
    const int64_t first_block = static_cast<int64_t>(layer) * pool.geometry.num_blocks;
    data_ = reinterpret_cast<Bf16*>(pool.data + first_block * static_cast<int64_t>(kv_block_bytes(pool.geometry)));
    const int64_t first_slot = first_block * num_kv_heads_ * block_size_;
    scores_ = pool.scores == nullptr ? nullptr : pool.scores + first_slot;
    positions_ = pool.positions == nullptr ? nullptr : pool.positions + first_slot;
  }

  int block_size() const { return block_size_; }
  int head_dim() const { return head_dim_; }
  int num_kv_heads() const { return num_kv_heads_; }

  Bf16* keys(int block, int head) const {  // [block_size / 16][head_dim / 2][16][2]
    return data_ + (static_cast<int64_t>(block) * num_kv_heads_ + head) * 2 * head_elements_;
  }
  Bf16* key_tile(int block, int head, int tile) const {  // [head_dim / 2][16][2], slots tile * 16 ..
    return keys(block, head) + static_cast<int64_t>(tile) * kTileSlots * head_dim_;
  }
  Bf16* values(int block, int head) const { return keys(block, head) + head_elements_; }  // [block_size][head_dim]
  Bf16* value_row(int block, int head, int slot) const {                                  // [head_dim]
    return values(block, head) + static_cast<int64_t>(slot) * head_dim_;
  }
  // REQUIRES: the pool has scores and positions.
  float* scores(int block, int head) const {  // [block_size]
    return scores_ + (static_cast<int64_t>(block) * num_kv_heads_ + head) * block_size_;
  }
  int32_t* positions(int block, int head) const {  // [block_size]
    return positions_ + (static_cast<int64_t>(block) * num_kv_heads_ + head) * block_size_;
  }

  // One row of K between the tiles and contiguous memory; V rows are contiguous already.
  void read_key(int block, int head, int slot, float* out) const {  // out [head_dim]
    const Bf16* source = keys(block, head) + key_index(slot, 0, head_dim_);
    for (int d = 0; d < head_dim_; d += 2, source += 2 * kTileSlots) {
      out[d] = static_cast<float>(source[0]);
      out[d + 1] = static_cast<float>(source[1]);
    }
  }
  void read_key(int block, int head, int slot, Bf16* out) const {
    const Bf16* source = keys(block, head) + key_index(slot, 0, head_dim_);
    for (int d = 0; d < head_dim_; d += 2, source += 2 * kTileSlots) {
      out[d] = source[0];
      out[d + 1] = source[1];
    }
  }
  void write_key(int block, int head, int slot, const float* row) const {  // row [head_dim], rounded to bf16
    Bf16* target = keys(block, head) + key_index(slot, 0, head_dim_);
    for (int d = 0; d < head_dim_; d += 2, target += 2 * kTileSlots) {
      target[0] = Bf16(row[d]);
      target[1] = Bf16(row[d + 1]);
    }
  }
  void write_key(int block, int head, int slot, const Bf16* row) const {
    Bf16* target = keys(block, head) + key_index(slot, 0, head_dim_);
    for (int d = 0; d < head_dim_; d += 2, target += 2 * kTileSlots) {
      target[0] = row[d];
      target[1] = row[d + 1];
    }
  }
  void read_value(int block, int head, int slot, float* out) const {
    const Bf16* source = value_row(block, head, slot);
    for (int d = 0; d < head_dim_; ++d) out[d] = static_cast<float>(source[d]);
  }
  void write_value(int block, int head, int slot, const float* row) const {
    Bf16* target = value_row(block, head, slot);
    for (int d = 0; d < head_dim_; ++d) target[d] = Bf16(row[d]);
  }

 private:
  int block_size_, head_dim_, num_kv_heads_;
  int64_t head_elements_;
  Bf16* data_ = nullptr;
  float* scores_ = nullptr;
  int32_t* positions_ = nullptr;
};

}  // namespace zipage::cpu
