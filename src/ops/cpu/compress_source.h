// What the stages' launchers share: the checks on a CompressionSource and one layer and KV head of it at a time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

#include "ops/compress_ops.h"
#include "ops/cpu/compress_kernels.h"
#include "ops/cpu/cpu_backend.h"
#include "ops/cpu/kv_layout.h"

namespace zipage::cpu {

inline void check_source(const CompressionSource& source, const char* stage) {
  const KvGeometry& g = source.kv.geometry;
  ZIPAGE_CHECK(source.kv.data != nullptr && source.source_blocks != nullptr, "{}: no pool or no blocks", stage);
  ZIPAGE_CHECK(source.kv.positions != nullptr || source.num_scored == 0, "{}: a pool without positions", stage);
  ZIPAGE_CHECK(g.dtype == DType::kBF16 && g.block_size % kTileSlots == 0 && g.head_dim % 2 == 0,
               "{}: K must be bf16 in blocks of whole tiles, even head size (block {}, head {})", stage, g.block_size,
               g.head_dim);
  ZIPAGE_CHECK(source.num_slots > 0 && source.num_scored >= 0 && source.num_scored <= source.num_slots,
               "{}: {} of {} slots scored", stage, source.num_scored, source.num_slots);
}

// One layer and KV head of the source.
class SourceHead {
 public:
  SourceHead(const CompressionSource& source, int layer, int head)
      : source_(source), view_(source.kv, layer), head_(head) {}
  SourceHead(const CompressionSource& source, int64_t task)
      : SourceHead(source, static_cast<int>(task / source.kv.geometry.num_kv_heads),
                   static_cast<int>(task % source.kv.geometry.num_kv_heads)) {}

  const KvLayerView& view() const { return view_; }
  int head() const { return head_; }
  int block(int t) const { return source_.source_blocks[t / view_.block_size()]; }
  int slot(int t) const { return t % view_.block_size(); }

  const uint16_t* key_tile(int tile) const {
    const int t = tile * kTileSlots;
    return reinterpret_cast<const uint16_t*>(view_.key_tile(block(t), head_, slot(t) / kTileSlots));
  }
  // body(begin, end, block) for each block of slots in [0, limit): the slots [begin, end) are its first ones. Loops
  // over slots go through this, since a division for each slot would cost more than the stage.
  template <typename Body>
  void for_each_block(int limit, Body&& body) const {
    for (int begin = 0, i = 0; begin < limit; begin += view_.block_size(), ++i) {
      body(begin, std::min(begin + view_.block_size(), limit), source_.source_blocks[i]);
    }
  }
  // Positions of all slots: stored for scored slots, counted for the new ones.
  void read_positions(int32_t* out) const {
    for_each_block(source_.num_scored, [&](int begin, int end, int block) {
      std::copy_n(view_.positions(block, head_), end - begin, out + begin);
    });
    for (int t = source_.num_scored; t < source_.num_slots; ++t) {
      out[t] = source_.first_position + (t - source_.num_scored);
    }
  }

 private:
  const CompressionSource& source_;
  KvLayerView view_;
  int head_;
};

// Bytes that fill_head_keys() needs.
inline size_t head_keys_bytes(const CompressionSource& source) {
  const auto slots = static_cast<size_t>(ceil16(source.num_slots));
  return slots / kTileSlots * sizeof(const uint16_t*) + slots * sizeof(int32_t);
}

// The kernels' view of one head, in `memory`; returns it and the memory behind what it took.
inline std::pair<HeadKeys, std::byte*> fill_head_keys(const CompressionSource& source, const SourceHead& head,
                                                      std::byte* memory) {
  const int slots = ceil16(source.num_slots);
  auto* tiles = reinterpret_cast<const uint16_t**>(memory);
  auto* positions = reinterpret_cast<int32_t*>(tiles + slots / kTileSlots);
  for (int tile = 0; tile < slots / kTileSlots; ++tile) tiles[tile] = head.key_tile(tile);
  head.read_positions(positions);
  std::fill(positions + source.num_slots, positions + slots, 0);
  return {HeadKeys{tiles, positions, source.num_slots, source.kv.geometry.head_dim},
          reinterpret_cast<std::byte*>(positions + slots)};
}

// body(task, thread) for every layer and KV head; task indexes [num_layers, num_kv_heads].
template <typename Body>
void for_each_head(Executor& executor, const CompressionSource& source, Body&& body) {
  const int64_t tasks = int64_t{source.kv.geometry.num_layers} * source.kv.geometry.num_kv_heads;
  executor.parallel_for(tasks, 1, [&](int64_t begin, int64_t end, int thread) {
    for (int64_t task = begin; task < end; ++task) body(task, thread);
  });
}

}  // namespace zipage::cpu
