// Stage 8: the kept slots move together.
//
// Slot i of the result comes from t_i >= i, and a target that is a source block has at most its own index there, but
// for the retained ones at the end, whose K and V stay where they lie. So what a write to slot i destroys had index
// t <= i and was kept, if at all, as some j <= t <= i: read before or just now (C1). A tile of keys is written a row of
// lanes at a time, each row read whole before it is written.
#include <algorithm>
#include <cstring>
#include <functional>

#include "ops/cpu/compress_source.h"

namespace zipage::cpu {
namespace {

void check_targets(const CompactParams& p) {
  const int b = p.source.kv.geometry.block_size;
  const int num_sources = (p.source.num_slots + b - 1) / b;
  const int num_targets = p.budget / b, num_written = num_targets - p.num_retained;
  ZIPAGE_CHECK(p.num_retained == 0 || (num_written >= 0 && p.source.num_slots % b == 0),
               "compact: {} of {} blocks retained of {} slots", p.num_retained, num_targets, p.source.num_slots);
  for (int i = 0; i < num_targets; ++i) {
    const int32_t target = p.target_blocks[i];
    ZIPAGE_CHECK(target >= 0 && target < p.source.kv.geometry.num_blocks, "compact: target block {} of {}", target,
                 p.source.kv.geometry.num_blocks);
    if (i >= num_written) {
      const int32_t source = p.source.source_blocks[num_sources - num_targets + i];
      ZIPAGE_CHECK(target == source, "C1: retained target {} is block {}, not the source's {}", i, target, source);
      continue;
    }
    for (int j = i + 1; j < num_sources; ++j) {
      ZIPAGE_CHECK(p.source.source_blocks[j] != target,
                   "C1: target {} is block {}, which is source {} and not yet read by then", i, target, j);
    }
    for (int j = 0; j < i; ++j) {
      ZIPAGE_CHECK(p.target_blocks[j] != target, "compact: block {} is target {} and {}", target, j, i);
    }
  }
}

// A call of memcpy a row costs as much as the row; the usual sizes are copied inline.
void copy_row(Bf16* to, const Bf16* from, int head_dim) {
  switch (head_dim) {
    case 64:
      std::memcpy(to, from, 64 * sizeof(Bf16));
      break;
    case 128:
      std::memcpy(to, from, 128 * sizeof(Bf16));
      break;
    default:
      std::memcpy(to, from, static_cast<size_t>(head_dim) * sizeof(Bf16));
  }
}

// The kept slots of one head, moved a tile of 16 at a time: K, V, then the numbers.
class Mover {
 public:
  Mover(const CompactParams& p, const CompressKernels& kernels, int64_t task)
      : p_(p),
        kernels_(kernels),
        head_(p.source, task),
        kept_(p.kept + task * p.budget),
        scores_(p.scores == nullptr ? nullptr : p.scores + task * p.source.num_slots) {}

  void run() {
    const int b = head_.view().block_size();
    const int num_targets = p_.budget / b;
    for (int target = 0; target < num_targets; ++target) {
      const int block = p_.target_blocks[target];
      for (int slot = 0; slot < b; slot += kTileSlots) {
        find_sources(target * b + slot);
        if (target < num_targets - p_.num_retained) {
          move_keys(block, slot);
          move_values(block, slot);
        }
        move_numbers(block, slot);
      }
    }
  }

 private:
  // Block and slot of kept slots [first, first + 16). They ascend, so the block is the last one's or a later one.
  void find_sources(int first) {
    const int b = head_.view().block_size();
    for (int i = 0; i < kTileSlots; ++i) {
      const int t = kept_[first + i];
      while (t >= block_start_ + b) {
        block_start_ += b;
        ++block_index_;
      }
      kept_slot_[i] = t;
      source_block_[i] = p_.source.source_blocks[block_index_];
      source_slot_[i] = t - block_start_;
    }
  }

  void move_keys(int block, int slot) {
    const KvLayerView& view = head_.view();
    const uint16_t* tiles[kTileSlots];
    int32_t lanes[kTileSlots];
    bool in_place = true;
    for (int i = 0; i < kTileSlots; ++i) {
      tiles[i] = reinterpret_cast<const uint16_t*>(
          view.key_tile(source_block_[i], head_.head(), source_slot_[i] / kTileSlots));
      lanes[i] = source_slot_[i] % kTileSlots;
      in_place = in_place && source_block_[i] == block && source_slot_[i] == slot + i;
    }
    if (in_place) return;
    auto* target = reinterpret_cast<uint16_t*>(view.key_tile(block, head_.head(), slot / kTileSlots));
    kernels_.gather_key_tile(target, tiles, lanes, view.head_dim());
  }

  void move_values(int block, int slot) {
    const KvLayerView& view = head_.view();
    for (int i = 0; i < kTileSlots; ++i) {
      const Bf16* from = view.value_row(source_block_[i], head_.head(), source_slot_[i]);
      Bf16* to = view.value_row(block, head_.head(), slot + i);
      if (from != to) copy_row(to, from, view.head_dim());
    }
  }

  void move_numbers(int block, int slot) {
    const KvLayerView& view = head_.view();
    int32_t* positions = view.positions(block, head_.head()) + slot;
    for (int i = 0; i < kTileSlots; ++i) {
      const int t = kept_slot_[i];
      positions[i] = t < p_.source.num_scored ? view.positions(source_block_[i], head_.head())[source_slot_[i]]
                                              : p_.source.first_position + (t - p_.source.num_scored);
    }
    if (scores_ == nullptr) return;
    float* scores = view.scores(block, head_.head()) + slot;
    for (int i = 0; i < kTileSlots; ++i) scores[i] = scores_[kept_slot_[i]];
  }

  const CompactParams& p_;
  const CompressKernels& kernels_;
  SourceHead head_;
  const int32_t* kept_;
  const float* scores_;
  int block_index_ = 0, block_start_ = 0;  // where the last source slot was found
  int kept_slot_[kTileSlots], source_block_[kTileSlots], source_slot_[kTileSlots];
};

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
    [[maybe_unused]] const int32_t* kept = p.kept + task * p.budget;
    ZIPAGE_DCHECK(std::adjacent_find(kept, kept + p.budget, std::greater_equal<>()) == kept + p.budget,
                  "C5: kept slots of head {} out of order", task);
    ZIPAGE_DCHECK(p.num_retained == 0 || kept[p.budget - p.num_retained * b] == p.source.num_slots - p.num_retained * b,
                  "C4: not all slots of the retained blocks of head {} are kept", task);
    Mover(p, kernels, task).run();
  });
}

}  // namespace zipage::cpu
