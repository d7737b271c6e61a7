// Stage 8: the kept slots move together.
//
// Slot i of the result comes from t_i >= i, and a target that is a source block has at most its own index there. So
// what a write to slot i destroys had index t <= i and was kept, if at all, as some j <= t <= i: read before or just
// now (C1). A tile of keys is written a row of lanes at a time, each row read whole before it is written.
#include <algorithm>
#include <cstring>
#include <functional>

#include "ops/cpu/compress_source.h"

namespace zipage::cpu {
namespace {

void check_targets(const CompactParams& p) {
  const int b = p.source.kv.geometry.block_size;
  const int num_sources = (p.source.num_slots + b - 1) / b;
  const int num_targets = p.budget / b;
  for (int i = 0; i < num_targets; ++i) {
    const int32_t target = p.target_blocks[i];
    ZIPAGE_CHECK(target >= 0 && target < p.source.kv.geometry.num_blocks, "compact: target block {} of {}", target,
                 p.source.kv.geometry.num_blocks);
    for (int j = i + 1; j < num_sources; ++j) {
      ZIPAGE_CHECK(p.source.source_blocks[j] != target,
                   "C1: target {} is block {}, which is source {} and not yet read by then", i, target, j);
    }
    for (int j = 0; j < i; ++j) {
      ZIPAGE_CHECK(p.target_blocks[j] != target, "compact: block {} is target {} and {}", target, j, i);
    }
  }
}

// Where slots [first, first + 16) of the result go.
struct TargetTile {
  int block;
  int first_slot;
};

void move_keys(const SourceHead& head, const CompressKernels& kernels, TargetTile to, const int32_t* kept) {
  const uint16_t* tiles[kTileSlots];
  int32_t lanes[kTileSlots];
  for (int i = 0; i < kTileSlots; ++i) {
    tiles[i] = head.key_tile(kept[i] / kTileSlots);
    lanes[i] = kept[i] % kTileSlots;
  }
  const int tile = to.first_slot / kTileSlots;
  kernels.gather_key_tile(reinterpret_cast<uint16_t*>(head.view().key_tile(to.block, head.head(), tile)), tiles, lanes,
                          head.view().head_dim());
}

void move_rows(const SourceHead& head, TargetTile to, const int32_t* kept, const float* scores) {
  const KvLayerView& view = head.view();
  const size_t row_bytes = static_cast<size_t>(view.head_dim()) * sizeof(Bf16);
  for (int i = 0; i < kTileSlots; ++i) {
    const int t = kept[i];
    const Bf16* from = view.value_row(head.block(t), head.head(), head.slot(t));
    Bf16* target = view.value_row(to.block, head.head(), to.first_slot + i);
    if (from != target) std::memcpy(target, from, row_bytes);
    view.positions(to.block, head.head())[to.first_slot + i] = head.position(t);
    if (scores != nullptr) view.scores(to.block, head.head())[to.first_slot + i] = scores[t];
  }
}

bool stays_in_place(const SourceHead& head, TargetTile to, int first, const int32_t* kept) {
  return kept[0] == first && kept[kTileSlots - 1] == first + kTileSlots - 1 && head.block(first) == to.block;
}

}  // namespace

void CpuBackend::compact(Queue& queue, const CompactParams& p) {
  check_source(p.source, "compact");
  const int b = p.source.kv.geometry.block_size;
  ZIPAGE_CHECK(p.budget > 0 && p.budget % b == 0 && p.budget <= p.source.num_slots,
               "compact: a budget of {} for {} slots in blocks of {}", p.budget, p.source.num_slots, b);
  ZIPAGE_CHECK(p.source.kv.positions != nullptr, "compact: a pool without positions");
  ZIPAGE_CHECK(p.scores == nullptr || p.source.kv.scores != nullptr, "compact: a pool without scores");
  check_targets(p);
  const CompressKernels& kernels = compress_kernels(isa_);

  for_each_head(executor(queue), p.source, [&](int64_t task, int) {
    const SourceHead head(p.source, task);
    const int32_t* kept = p.kept + task * p.budget;
    const float* scores = p.scores == nullptr ? nullptr : p.scores + task * p.source.num_slots;
    ZIPAGE_DCHECK(std::adjacent_find(kept, kept + p.budget, std::greater_equal<>()) == kept + p.budget,
                  "C5: kept slots of head {} out of order", task);
    for (int first = 0; first < p.budget; first += kTileSlots) {
      const TargetTile to = {p.target_blocks[first / b], first % b};
      if (!stays_in_place(head, to, first, kept + first)) move_keys(head, kernels, to, kept + first);
      move_rows(head, to, kept + first, scores);
    }
  });
}

}  // namespace zipage::cpu
