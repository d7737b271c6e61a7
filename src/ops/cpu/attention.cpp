// Attention over the paged pool, for decode rows and prompt chunks alike.
//
// A tile is up to 24 query rows (tokens x heads that share a KV head) of one sequence; its slots are taken in segments
// of 256 counted from slot 0. With few tiles each segment is a task of its own and the states are merged afterwards;
// with many, a tile is. Both merge in the same order, so the result is the same to the bit.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/check.h"
#include "ops/cpu/cpu_backend.h"
#include "ops/cpu/kernels.h"
#include "ops/cpu/kv_layout.h"

namespace zipage::cpu {
namespace {

constexpr int64_t kTilesPerThread = 4;  // with fewer, segments are spread

struct Tile {
  int seq;
  int token;  // of the batch
  int num_tokens;
  int num_slots;  // that the last token sees
};

struct Shape {
  int group;       // query heads per KV head
  int heads;       // of a tile
  int head_parts;  // tiles that share one KV head's group
  int tokens;      // of a tile at most
  int64_t parts;   // tiles per entry of the tile list: KV heads x head_parts
};

void start(int num_rows, SegmentState& state) {
  std::fill_n(state.largest, num_rows, -std::numeric_limits<float>::infinity());
  std::fill_n(state.sum, num_rows, 0.0F);
}

// total = total, then part.
void merge(const Kernels& kernel, int num_rows, int head_dim, const SegmentState& part, SegmentState& total) {
  for (int row = 0; row < num_rows; ++row) {
    if (part.sum[row] == 0.0F) continue;
    float* values = total.values + static_cast<int64_t>(row) * head_dim;
    const float* more = part.values + static_cast<int64_t>(row) * head_dim;
    if (total.sum[row] == 0.0F) {
      std::copy_n(more, head_dim, values);
      total.sum[row] = part.sum[row];
      total.largest[row] = part.largest[row];
      continue;
    }
    const float largest = std::max(total.largest[row], part.largest[row]);
    const float a = std::exp(total.largest[row] - largest);
    const float b = std::exp(part.largest[row] - largest);
    kernel.merge_values(a, b, more, head_dim, values);
    total.sum[row] = total.sum[row] * a + part.sum[row] * b;
    total.largest[row] = largest;
  }
}

class AttentionTask {
 public:
  AttentionTask(const AttentionParams& params, const Kernels& kernel)
      : params_(params), kernel_(kernel), kv_(params.kv, params.layer), head_dim_(params.kv.geometry.head_dim) {
    shape_.group = params.num_heads / params.kv.geometry.num_kv_heads;
    shape_.heads = std::min(shape_.group, kAttentionRows);
    shape_.head_parts = (shape_.group + shape_.heads - 1) / shape_.heads;
    shape_.tokens = kAttentionRows / shape_.heads;
    shape_.parts = static_cast<int64_t>(params.kv.geometry.num_kv_heads) * shape_.head_parts;
  }

  void run(Executor& executor) {
    clear_rows_without_sequence();
    const int64_t num_entries = list_tiles(nullptr);
    const int64_t num_tiles = num_entries * shape_.parts;
    const int64_t max_segments = (params_.batch.max_seq_len + kSegmentSlots - 1) / kSegmentSlots;
    const bool spread = max_segments > 1 && num_tiles < kTilesPerThread * executor.num_threads();
    const int64_t state_bytes = static_cast<int64_t>(sizeof(SegmentState)) + values_bytes();
    const int64_t list_bytes = (num_entries * static_cast<int64_t>(sizeof(Tile)) + 63) / 64 * 64;
    std::byte* shared = executor.shared_scratch(
        static_cast<size_t>(list_bytes + (spread ? num_tiles * max_segments * state_bytes : 0)));
    Tile* tiles = reinterpret_cast<Tile*>(shared);
    list_tiles(tiles);

    if (!spread) {
      executor.parallel_for(num_tiles, 1, [&](int64_t begin, int64_t end, int thread) {
        whole_tiles(tiles, begin, end, make_workspace(executor, thread));
      });
      return;
    }
    const auto state_of = [&](int64_t tile, int64_t segment) {
      return state_at(shared + list_bytes + (tile * max_segments + segment) * state_bytes);
    };
    executor.parallel_for(num_tiles * max_segments, 1, [&](int64_t begin, int64_t end, int thread) {
      const Workspace workspace = make_workspace(executor, thread);
      SegmentArgs args;
      for (int64_t task = begin; task < end; ++task) {
        const int64_t tile = task / max_segments;
        const auto segment = static_cast<int>(task % max_segments);
        const Tile& entry = tiles[tile / shape_.parts];
        if (segment * kSegmentSlots >= entry.num_slots) continue;
        prepare(entry, tile % shape_.parts, segment, args);
        args.scores = workspace.scores;
        kernel_.segment(args, *state_of(tile, segment));
      }
    });
    executor.parallel_for(num_tiles, 4, [&](int64_t begin, int64_t end, int thread) {
      const Workspace workspace = make_workspace(executor, thread);
      for (int64_t tile = begin; tile < end; ++tile) {
        const Tile& entry = tiles[tile / shape_.parts];
        const int rows = rows_of(entry, tile % shape_.parts);
        start(rows, *workspace.total);
        for (int64_t segment = 0; segment * kSegmentSlots < entry.num_slots; ++segment) {
          merge(kernel_, rows, head_dim_, *state_of(tile, segment), *workspace.total);
        }
        finish(entry, tile % shape_.parts, *workspace.total);
      }
    });
  }

 private:
  struct Workspace {
    float* scores;
    SegmentState* part;
    SegmentState* total;
  };

  int64_t values_bytes() const {
    return static_cast<int64_t>(kAttentionRows) * head_dim_ * static_cast<int64_t>(sizeof(float));
  }

  static SegmentState* state_at(std::byte* memory) {
    auto* state = new (memory) SegmentState;
    state->values = reinterpret_cast<float*>(memory + sizeof(SegmentState));
    return state;
  }

  Workspace make_workspace(Executor& executor, int thread) const {
    constexpr int64_t kScoreBytes =
        static_cast<int64_t>(kAttentionRows) * kSegmentSlots * static_cast<int64_t>(sizeof(float));
    const int64_t state_bytes = static_cast<int64_t>(sizeof(SegmentState)) + values_bytes();
    std::byte* memory = executor.scratch(thread, static_cast<size_t>(kScoreBytes + 2 * state_bytes));
    return {reinterpret_cast<float*>(memory), state_at(memory + kScoreBytes),
            state_at(memory + kScoreBytes + state_bytes)};
  }

  // Tokens behind the last sequence's are padding too.
  void clear_rows_without_sequence() const {
    const BatchView& batch = params_.batch;
    const int first = batch.num_seqs == 0 ? 0 : batch.query_start_loc[batch.num_seqs];
    for (int token = first; token < batch.num_tokens; ++token) clear_row(token);
  }

  void clear_row(int token) const {
    std::fill_n(static_cast<float*>(params_.out.data) + token * params_.out.stride,
                static_cast<int64_t>(params_.num_heads) * head_dim_, 0.0F);
  }

  // Fills `tiles` unless null; returns how many entries there are. Padding rows become 0 on the way.
  int64_t list_tiles(Tile* tiles) const {
    const BatchView& batch = params_.batch;
    int64_t count = 0;
    for (int seq = 0; seq < batch.num_seqs; ++seq) {
      const int begin = batch.query_start_loc[seq];
      const int end = batch.query_start_loc[seq + 1];
      const int context = batch.seq_lens[seq] - (end - begin);
      for (int token = begin; token < end; token += shape_.tokens) {
        const int tokens = std::min(shape_.tokens, end - token);
        const int slots = context + token + tokens - begin;
        if (batch.seq_lens[seq] == 0) {
          for (int i = token; i < token + tokens; ++i) clear_row(i);
          continue;
        }
        if (tiles != nullptr) tiles[count] = {seq, token, tokens, slots};
        ++count;
      }
    }
    return count;
  }

  int heads_of(int64_t part) const {
    return std::min(shape_.heads, shape_.group - static_cast<int>(part % shape_.head_parts) * shape_.heads);
  }
  int rows_of(const Tile& tile, int64_t part) const { return tile.num_tokens * heads_of(part); }
  int first_head(int64_t part) const {
    return static_cast<int>(part / shape_.head_parts) * shape_.group +
           static_cast<int>(part % shape_.head_parts) * shape_.heads;
  }

  void prepare(const Tile& tile, int64_t part, int segment, SegmentArgs& args) const {
    const int heads = heads_of(part);
    const int first_slot = segment * kSegmentSlots;
    args.num_rows = tile.num_tokens * heads;
    args.head_dim = head_dim_;
    args.num_slots = std::min(kSegmentSlots, tile.num_slots - first_slot);
    args.scale = params_.scale;
    for (int row = 0; row < args.num_rows; ++row) {
      const int token = row / heads;
      args.queries[row] = static_cast<const float*>(params_.q.data) + (tile.token + token) * params_.q.stride +
                          static_cast<int64_t>(first_head(part) + row % heads) * head_dim_;
      args.visible[row] = tile.num_slots - (tile.num_tokens - 1 - token) - first_slot;
    }
    const int kv_head = static_cast<int>(part / shape_.head_parts);
    const int32_t* table =
        params_.batch.block_table + static_cast<int64_t>(tile.seq) * params_.batch.max_blocks_per_seq;
    for (int t = 0; t < kSegmentTiles; ++t) {
      const int slot = first_slot + t * kTileSlots;
      if (slot >= tile.num_slots) {
        args.key_tiles[t] = nullptr;
        continue;
      }
      const int block = table[slot / kv_.block_size()];
      const int offset = slot % kv_.block_size();
      args.key_tiles[t] = kv_.key_tile(block, kv_head, offset / kTileSlots);
      args.value_tiles[t] = kv_.value_row(block, kv_head, offset);
    }
    args.next_key_tiles = nullptr;
  }

  // Each segment is prepared one ahead, so that the kernel can fetch its keys while it works on the one before.
  void whole_tiles(const Tile* tiles, int64_t begin, int64_t end, const Workspace& workspace) const {
    SegmentArgs buffers[2];
    SegmentArgs* current = &buffers[0];
    SegmentArgs* next = &buffers[1];
    prepare(tiles[begin / shape_.parts], begin % shape_.parts, 0, *current);
    for (int64_t tile = begin; tile < end; ++tile) {
      const Tile& entry = tiles[tile / shape_.parts];
      const int rows = rows_of(entry, tile % shape_.parts);
      start(rows, *workspace.total);
      const int segments = (entry.num_slots + kSegmentSlots - 1) / kSegmentSlots;
      for (int segment = 0; segment < segments; ++segment) {
        if (segment + 1 < segments) {
          prepare(entry, tile % shape_.parts, segment + 1, *next);
        } else if (tile + 1 < end) {
          prepare(tiles[(tile + 1) / shape_.parts], (tile + 1) % shape_.parts, 0, *next);
        }
        if (segment + 1 < segments || tile + 1 < end) current->next_key_tiles = next->key_tiles;
        current->scores = workspace.scores;
        kernel_.segment(*current, *workspace.part);
        merge(kernel_, rows, head_dim_, *workspace.part, *workspace.total);
        std::swap(current, next);
      }
      finish(entry, tile % shape_.parts, *workspace.total);
    }
  }

  void finish(const Tile& tile, int64_t part, const SegmentState& state) const {
    const int heads = heads_of(part);
    for (int row = 0; row < tile.num_tokens * heads; ++row) {
      float* out = static_cast<float*>(params_.out.data) + (tile.token + row / heads) * params_.out.stride +
                   static_cast<int64_t>(first_head(part) + row % heads) * head_dim_;
      const float factor = 1.0F / state.sum[row];
      const float* values = state.values + static_cast<int64_t>(row) * head_dim_;
      for (int d = 0; d < head_dim_; ++d) out[d] = values[d] * factor;
    }
  }

  const AttentionParams& params_;
  const Kernels& kernel_;
  const KvLayerView kv_;
  const int head_dim_;
  Shape shape_{};
};

}  // namespace

void CpuBackend::attention(Queue& queue, const AttentionParams& params) {
  const KvGeometry& geometry = params.kv.geometry;
  ZIPAGE_CHECK(params.q.dtype == DType::kF32 && params.out.dtype == DType::kF32,
               "attention: the CPU's activations are f32");
  ZIPAGE_CHECK(params.num_heads % geometry.num_kv_heads == 0, "attention: {} heads over {} KV heads", params.num_heads,
               geometry.num_kv_heads);
  ZIPAGE_CHECK(geometry.head_dim % 16 == 0 && geometry.block_size % kTileSlots == 0,
               "attention: head size {} and block size {} must be multiples of 16", geometry.head_dim,
               geometry.block_size);
  ZIPAGE_CHECK(
      params.out.cols == static_cast<int64_t>(params.num_heads) * geometry.head_dim && params.q.cols >= params.out.cols,
      "attention: q has {} columns, out {}, for {} heads of {}", params.q.cols, params.out.cols, params.num_heads,
      geometry.head_dim);
  AttentionTask(params, kernels(isa_)).run(executor(queue));
}

}  // namespace zipage::cpu
