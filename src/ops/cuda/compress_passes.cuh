// Stages 1 and 4 for scope mean over content keys, in two passes over K and one over V.
//
// The first pass makes, of every tile of keys, the window's logits (on tensor cores) and from them each line's maximum
// and sum of exponentials, and adds up the keys' directions with RoPE undone. The second makes the same logits again,
// now with their softmax's offset, R[t] = k^[t] . u with the sum u, and the lengths of the values. What is left takes a
// few numbers a slot (compress_final_scores.cu).
//
// For directions a few lanes walk a run of neighbouring slots: from slot to slot the sum, or u, is turned by the
// distance of their positions, whose angles lie in shared memory; a run's first position is looked up in the whole
// table.
//
// Blocks stay, each on a stretch of the units' tiles one after the other; the second pass walks it backwards, since its
// end may still lie in the cache. One warpgroup of a block has the lines of all tiles, and the values; two take turns
// at the directions.
#pragma once

#include "ops/cuda/compress_key_panels.cuh"
#include "ops/cuda/compress_window_scores.cuh"

namespace zipage::cuda {

struct PassArgs {
  WindowScores window;
  const float* cos_sin;  // [num_positions, head_dim]
  int num_positions, box_rows;
  bool value_norms;
  int tiles, all_tiles, per_block, parts;  // of a unit, of all units, of a block's stretch; most blocks of a unit
  float* redundancy;                       // out: R [units, num_slots]; window.scores: A
  // What the passes leave each other and what comes behind.
  float* inverse;  // 1 / |k| [units, num_slots]
  float2* stats;   // maximum and sum in log2 [units, parts, kLines]
  float* sums;     // of u [units, parts, kTurns, head_dim]
  float* norms;    // the values' lengths [units, num_slots]

  __host__ __device__ int first_block(int unit) const { return unit * tiles / per_block; }
  __host__ __device__ int num_parts(int unit) const {
    return (unit * tiles + tiles - 1) / per_block - first_block(unit) + 1;
  }
};

void compress_first_pass(const Launch&, const PassArgs&, const CUtensorMap& keys, int blocks);
void compress_second_pass(const Launch&, const PassArgs&, const CUtensorMap& keys, int blocks);

// ---- what both passes do ----

namespace passes {

inline constexpr int kGroupThreads = 128;  // of a warpgroup
inline constexpr int kGroupWarps = kGroupThreads / kWarpSize;
inline constexpr int kTurns = 2;  // warpgroups that take turns at the directions, behind the one of the lines
inline constexpr int kThreads = (1 + kTurns) * kGroupThreads;
inline constexpr int kTile = 64;  // slots of a product, kSegment of a warp
inline constexpr int kStages = 4;
inline constexpr int kValueStages = 2;  // panels of a tile of values
inline constexpr int kVector = 8;       // elements a lane has of each half of a key
inline constexpr int kPart = 4;         // of them that lie one after the other, and that it works on at once
static_assert(kVector == 2 * kPart);
inline constexpr int kNear = 28;  // distances below have their angles in shared memory: as many as there is room for
inline constexpr int kMostSlots = 4096;
inline constexpr int kMostBlocks = kMostSlots / kSegment;  // of a sequence's table
static_assert(kTile == kGroupWarps * kSegment && kStages % kTurns == 0);

template <int kHeadDim>
struct Shape {
  static constexpr int kLanes = kHeadDim / (2 * kVector);  // of a key
  static constexpr int kRuns = kWarpSize / kLanes;         // of a warp in a tile
  static constexpr int kRun = kSegment / kRuns;            // slots
  static constexpr int kPanels = kHeadDim / 64;
  static constexpr int kRow = kHeadDim / 4;  // float4 of a row of angles
  static_assert(kRun == kLanes / 2);
};

template <int kHeadDim>
struct Shared {
  std::byte keys[kStages][Shape<kHeadDim>::kPanels * kTile * kPanelRow];
  std::byte queries[Shape<kHeadDim>::kPanels * kLines * kPanelRow];
  float4 angles[kNear][Shape<kHeadDim>::kRow];  // of distances
  union {
    struct {
      float bases[kGroupWarps][kLines];  // minus a line's greatest logit when a warp began with it, in log2
      float sums[kGroupWarps][kLines];
      float shares[kTurns][kGroupWarps][kHeadDim];
    } first;
    struct {
      std::byte values[kValueStages][kTile * kPanelRow];
      float offsets[kLines], u[kTurns][kHeadDim];
    } second;
  };
  int32_t blocks[kMostBlocks];
  uint64_t full[kStages], empty[kStages], value_full[kValueStages], value_empty[kValueStages];
};
static_assert(2 * (sizeof(Shared<128>) + 1024) <= 228 * 1024);

// ---- angles ----

// Cosines and sines of so many of a lane's elements.
struct Angles {
  float cosine[kPart], sine[kPart];

  __device__ Angles(float4 c, float4 s) : cosine{c.x, c.y, c.z, c.w}, sine{s.x, s.y, s.z, s.w} {}
};

template <int kHeadDim, bool kBackwards>
struct Pass {
  using S = Shape<kHeadDim>;
  using Positions = int[S::kRun];

  const PassArgs& a;
  const Source& source;
  const CUtensorMap& map;
  Shared<kHeadDim>& shared;
  const int lane = threadIdx.x % kWarpSize;
  const int all_warps =
      __shfl_sync(kFullMask, static_cast<int>(threadIdx.x) / kWarpSize, 0);   // a register that warps share
  const int group = all_warps / kGroupWarps, warp = all_warps % kGroupWarps;  // of the block, of the group
  const int thread = static_cast<int>(threadIdx.x) % kGroupThreads;           // of the group
  const int c = lane % S::kLanes, own = warp * kSegment;  // the lane's part of a key, the warp's first slot in a tile
  const int run = own + lane / S::kLanes * S::kRun;       // the lane's
  const int begin = static_cast<int>(blockIdx.x) * a.per_block;  // tile
  const int count = min(a.per_block, a.all_tiles - begin);       // tiles
  const float rescale = 1.0F / a.cos_sin[0];                     // takes the table's factor off

  __device__ Pass(const PassArgs& args, const CUtensorMap& keys, Shared<kHeadDim>& memory)
      : a(args), source(args.window.source), map(keys), shared(memory) {}

  // The block's place among those of a unit.
  __device__ int64_t part_of(int unit) const {
    return int64_t{unit} * a.parts + static_cast<int>(blockIdx.x) - a.first_block(unit);
  }
  __device__ int tile(int i) const { return begin + (kBackwards ? count - 1 - i : i); }

  // Where a tile's keys lie in the pool: a lane knows of one box, or there is none for it (-1).
  __device__ int box_row(int i) const {
    if (i >= count) return -1;
    const KvGeometry& g = source.geometry;
    const int unit = tile(i) / a.tiles, first = tile(i) % a.tiles * kTile, row = lane * a.box_rows, t = first + row;
    if (row >= kTile || t >= source.num_slots) return -1;
    const int at = source.entry(t), block = source.layer(unit) * g.num_blocks + shared.blocks[at];
    return (block * 2 * g.num_kv_heads + source.head(unit)) * g.block_size + t - at * g.block_size;
  }
  // By a warp: asks for a tile's keys.
  __device__ void ask_for(int i, int of_pool) const {
    if (i >= count) return;
    uint64_t* full = &shared.full[i % kStages];
    const int boxes = __popc(__ballot_sync(kFullMask, of_pool >= 0));
    if (lane == 0) barrier_arrive_expecting(full, boxes * a.box_rows * S::kPanels * kPanelRow);
    __syncwarp();
    if (of_pool < 0) return;
#pragma unroll
    for (int panel = 0; panel < S::kPanels; ++panel) {
      copy_box(shared.keys[i % kStages] + (panel * kTile + lane * a.box_rows) * kPanelRow, &map, panel * 64, of_pool,
               full);
    }
  }

  // A value's row is this far behind its key's.
  __device__ int value_rows() const {
    return source.geometry.num_kv_heads * source.geometry.block_size;
  }
  // The same of a tile's values, panel by panel.
  __device__ void ask_for_values(int i, int of_pool) const {
    if (i >= count) return;
    const int boxes = __popc(__ballot_sync(kFullMask, of_pool >= 0));
#pragma unroll
    for (int panel = 0; panel < S::kPanels; ++panel) {
      const int stage = (i * S::kPanels + panel) % kValueStages;
      uint64_t* full = &shared.value_full[stage];
      if (lane == 0) barrier_arrive_expecting(full, boxes * a.box_rows * kPanelRow);
      __syncwarp();
      if (of_pool < 0) continue;
      copy_box(shared.second.values[stage] + lane * a.box_rows * kPanelRow, &map, panel * 64, of_pool + value_rows(),
               full);
    }
  }

  // Barriers, what does not come from the kernel before, the first tiles. By the whole block.
  __device__ void start() const {
    if (threadIdx.x == 0) {
#pragma unroll
      for (int stage = 0; stage < kStages; ++stage) {
        barrier_init(&shared.full[stage], 1);
        barrier_init(&shared.empty[stage], 2 * kGroupThreads);
      }
#pragma unroll
      for (int stage = 0; stage < kValueStages; ++stage) {
        barrier_init(&shared.value_full[stage], 1);
        barrier_init(&shared.value_empty[stage], kGroupThreads);
      }
      barrier_init_done();
    }
    for (int i = threadIdx.x; i * source.kv.block_size < source.num_slots; i += kThreads)
      shared.blocks[i] = source.blocks[i];
    const auto* table = reinterpret_cast<const float4*>(a.cos_sin);
    for (int i = threadIdx.x; i < min(kNear, a.num_positions) * S::kRow; i += kThreads) {
      float4 v = table[i];
      v.x *= rescale, v.y *= rescale, v.z *= rescale, v.w *= rescale;
      shared.angles[i / S::kRow][i % S::kRow] = v;
    }
    __syncthreads();
    wait_till_previous_ended();
    if (all_warps == 0) {
      for (int i = 0; i < kStages; ++i) ask_for(i, box_row(i));
    }
  }
  __device__ void wait_for(int i) const {
    barrier_wait(&shared.full[i % kStages], i / kStages & 1);
  }
  // The thread is done with a tile.
  __device__ void release(int i) const {
    barrier_arrive(&shared.empty[i % kStages]);
  }
  // By a warp, behind release(i): asks for what takes the tile's place, once all are done with it.
  __device__ void ask_behind(int i, int of_pool) const {
    if (i + kStages >= count) return;
    barrier_wait(&shared.empty[i % kStages], i / kStages & 1);
    ask_for(i + kStages, of_pool);
  }
  __device__ void sync_group() const {
    sync_threads(1 + group, kGroupThreads);
  }

  // By the group of the lines, which has them afterwards.
  __device__ void load_queries(int unit) const {
    constexpr int kChunks = kHeadDim / 8;
    const WindowScores& w = a.window;
    const bf16* of_unit = unit_queries(w, unit, kHeadDim);
    const float per_group = 1.0F / static_cast<float>(w.group);
#pragma unroll
    for (int i = 0; i < kLines * kChunks / kGroupThreads; ++i) {
      const int at = i * kGroupThreads + thread, line = at / kChunks, line_tile = line / kRows;
      const int row_tile = static_cast<int>((static_cast<float>(line_tile) + 0.5F) * per_group);  // a division, sooner
      const int row = row_tile * kRows + line % kRows, head = line_tile - row_tile * w.group;
      const bool there = row < w.window;
      const bf16* from = of_unit + (ring_row(w, there ? row : 0) * w.num_heads + head) * kHeadDim;
      copy_async16(shared_address(shared.queries + panel_chunk<kLines>(line, at % kChunks)),
                   reinterpret_cast<const uint4*>(from) + at % kChunks, there);
    }
    copy_wait_all();
    fence_async_proxy();
    sync_group();
  }

  // z[4 n + 2 h + e] is slot g + 8 h of the warp's and line 8 n + 2 t + e, g and t as of a fragment.
  __device__ void multiply(int i, int unit, int first, float (&z)[kLines / 2]) const {
    const uint64_t rows = operand(shared_address(shared.keys[i % kStages]), 16, 1024);
    const uint64_t lines = operand(shared_address(shared.queries), 16, 1024);
    pin(z);
    product_begin();
#pragma unroll
    for (int k = 0; k < kHeadDim / 16; ++k) {  // in units of an operand's address
      const int panel = k / 4, inside = k % 4 * 32 / 16;
      product_ss(z, rows + panel * kTile * kPanelRow / 16 + inside, lines + panel * kLines * kPanelRow / 16 + inside,
                 k > 0);
    }
    product_commit();
    product_wait<0>();
    pin(z);
    if (first + kTile <= source.num_slots - a.window.window * a.window.row_stride) return;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int first_visible = first_row_seeing(a.window, unit, first + own + lane / 4 + 8 * h);
      int first_row = 2 * (lane % 4);  // of the line tile
#pragma unroll
      for (int n = 0, head = 0; n < kLineTiles; ++n) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          if (first_row + e < first_visible) z[4 * n + 2 * h + e] = -INFINITY;
        }
        if (++head == a.window.group) head = 0, first_row += kRows;
      }
    }
  }

  // Positions of the lane's run in a tile; past the end the last one's, or 0.
  __device__ void positions_of(int i, Positions& positions) const {
#pragma unroll
    for (int& p : positions) p = 0;
    if (i >= count) return;
    const int unit = tile(i) / a.tiles, t = tile(i) % a.tiles * kTile + run;
    if (t + S::kRun <= source.num_scored) {
      const int32_t* from = source.positions + index(unit, t);
      if constexpr (S::kRun == 4) {
        const int4 v = *reinterpret_cast<const int4*>(from);
        positions[0] = v.x, positions[1] = v.y, positions[2] = v.z, positions[3] = v.w;
      } else {
        static_assert(S::kRun == 2);
        const int2 v = *reinterpret_cast<const int2*>(from);
        positions[0] = v.x, positions[1] = v.y;
      }
      return;
    }
#pragma unroll
    for (int j = 0; j < S::kRun; ++j) {
      const int slot = t + j, after = slot - source.num_scored;
      if (slot >= source.num_slots) {
        positions[j] = j > 0 ? positions[j - 1] : 0;
      } else {
        positions[j] = after < 0 ? source.positions[index(unit, slot)] : source.first_position + after;
      }
    }
  }
  // Of the pool's positions.
  __device__ int64_t index(int unit, int t) const {
    const int at = source.entry(t);
    return score_index(source.geometry, source.layer(unit), shared.blocks[at], source.head(unit),
                       t - at * source.kv.block_size);
  }
  __device__ Angles of_position(int position, int p) const {
    const auto* row = reinterpret_cast<const float4*>(a.cos_sin + int64_t{position} * kHeadDim) + c + p * S::kLanes;
    return {row[0], row[S::kRow / 2]};
  }
  template <bool kBack>
  __device__ void turn_by(float (&x)[2][kPart], int distance, int p) const {
    if (distance < kNear) {
      const float4* row = shared.angles[distance] + c + p * S::kLanes;
      turn<kBack>(x, Angles{row[0], row[S::kRow / 2]});
    } else {
      Angles angles = of_position(distance, p);
#pragma unroll
      for (int e = 0; e < kPart; ++e) angles.cosine[e] *= rescale, angles.sine[e] *= rescale;
      turn<kBack>(x, angles);
    }
  }

  // Part p of slot j of the lane's run, zeros past the end.
  __device__ void read_key(int i, int j, int p, int there, float (&x)[2][kPart]) const {
    const std::byte* keys = shared.keys[i % kStages];
    const int piece = c + p * S::kLanes;  // of 8 bytes
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      uint2 v = make_uint2(0, 0);
      if (run + j < there) {
        v = *reinterpret_cast<const uint2*>(keys + panel_chunk<kTile>(run + j, h * S::kLanes + piece / 2) +
                                            piece % 2 * 8);
      }
      const float2 low = unpack(v.x), high = unpack(v.y);
      x[h][0] = low.x, x[h][1] = low.y, x[h][2] = high.x, x[h][3] = high.y;
    }
  }
  // Of a value for each slot of a run: the sum over the lanes of a key, of slot c / 2.
  __device__ static float sum_over_lanes(const float (&values)[S::kRun]) {
    float mine[1];
    share_out<Sum, S::kLanes / 2, 2>(values, mine);
    return mine[0] + __shfl_xor_sync(kFullMask, mine[0], 1);
  }
};

template <int kHeadDim>
void launch(const Launch& launch, void (*kernel)(PassArgs, CUtensorMap), const PassArgs& a, const CUtensorMap& keys,
            int blocks) {
  constexpr int kBytes = sizeof(Shared<kHeadDim>);
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes), "final_scores");
  run(launch, kernel, blocks, kThreads, kBytes, a, keys);
}

}  // namespace passes
}  // namespace zipage::cuda
