// Causal attention of whole chunks on Hopper: warpgroup matrix products, queries, K and V brought by the tensor copy
// engine.
//
// A piece of work is 128 rows, row = token * group + head of the group, of one KV head. Blocks stay and take pieces
// from a counter, the latest tokens first, since these see the most. One warp of a block fetches: the next piece's
// queries and first tiles come while this piece is finished. Two warpgroups own 64 rows each. A warpgroup starts the
// scores of the next tile before the output product of this one, so that its exponentials run beside a product.
#include <algorithm>

#include "ops/cuda/hopper.cuh"
#include "ops/cuda/launch.h"
#include "ops/cuda/tensor_map.h"

// Compiled for other machines, the kernel is empty and what it calls has no caller.
#pragma nv_diag_suppress 177

namespace zipage::cuda {
namespace {

// ---- numbers ----
constexpr int kConsumers = 2;       // warpgroups
constexpr int kGroupThreads = 128;  // of a warpgroup
constexpr int kThreads = (1 + kConsumers) * kGroupThreads;
constexpr int kGroupRows = 64;
constexpr int kRows = kConsumers * kGroupRows;
constexpr int kTile = 128;  // slots
constexpr int kStages = 2;
constexpr int kQueries = 2;          // pieces whose queries are there
constexpr int kPanel = kTile * 128;  // bytes of 64 columns of a tile
static_assert(kRows == kTile);       // so Q's panels are as large

template <int kHeadDim>
struct Shape {
  static constexpr int kPanels = kHeadDim / 64;
  static constexpr int kTileBytes = kPanels * kPanel;
  static constexpr int kSharedBytes = (kQueries + 2 * kStages) * kTileBytes + 1024;  // to align the first panel
};

struct Args {
  bf16* out;
  int64_t out_stride;
  int first_seq, num_seqs, group, max_blocks_per_seq, num_tokens;
  int block_size, num_kv_heads, box_rows;
  float scale_log2;
  const int32_t *query_start_loc, *seq_lens, *block_table;
  int32_t* counter;  // zero: pieces that were asked for
};

// A piece; no tiles: no slot is seen. The last one a block gets has no sequence.
struct Work {
  int seq, head, seq_len, begin, first_token, num_tokens, context, tiles;
};

struct Shared {
  uint64_t key_full[kStages], key_free[kStages], value_full[kStages], value_free[kStages];
  uint64_t query_full[kQueries], query_free[kQueries];
  Work work[kQueries];
};

// ---- kernels ----

// A warp's search for pieces.
struct Pieces {
  const Args& a;
  int tokens_per_piece, tiles, total;  // tiles of all sequences; pieces

  __device__ explicit Pieces(const Args& args) : a(args), tokens_per_piece(kRows / args.group), tiles(0) {
    const int lane = threadIdx.x % kWarpSize;
    for (int base = a.first_seq; base < a.num_seqs; base += kWarpSize) {
      tiles += __reduce_add_sync(kFullMask, tiles_of(base + lane));
    }
    total = tiles * a.num_kv_heads;
  }

  __device__ int tiles_of(int seq) const {
    if (seq >= a.num_seqs) return 0;
    return ceil_div(a.query_start_loc[seq + 1] - a.query_start_loc[seq], tokens_per_piece);
  }
  // Every block asks until it gets a number past the last piece, once; the last of all to ask leaves the counter zero.
  __device__ int claim() const {
    int taken = 0;
    const int blocks = static_cast<int>(gridDim.x);
    if (threadIdx.x % kWarpSize == 0) {
      taken = atomicAdd(a.counter, 1);
      if (taken == max(total - blocks, 0) + blocks - 1) *a.counter = 0;
    }
    return blocks + __shfl_sync(kFullMask, taken, 0);
  }
  __device__ Work find(int index) const {
    Work w{};
    w.seq = a.num_seqs;
    if (index >= total) return w;
    const int lane = threadIdx.x % kWarpSize;
    w.head = index % a.num_kv_heads;
    int tile = tiles - 1 - index / a.num_kv_heads;
    for (int base = a.first_seq;; base += kWarpSize) {
      int own = tiles_of(base + lane), sum = own;
#pragma unroll
      for (int offset = 1; offset < kWarpSize; offset <<= 1) {
        const int other = __shfl_up_sync(kFullMask, sum, offset);
        if (lane >= offset) sum += other;
      }
      const unsigned holds = __ballot_sync(kFullMask, tile < sum);
      if (holds == 0) {
        tile -= __shfl_sync(kFullMask, sum, kWarpSize - 1);
        continue;
      }
      const int which = __ffs(static_cast<int>(holds)) - 1;
      tile -= __shfl_sync(kFullMask, sum - own, which);
      w.seq = base + which;
      break;
    }
    w.begin = a.query_start_loc[w.seq];
    const int query_len = a.query_start_loc[w.seq + 1] - w.begin;
    w.seq_len = a.seq_lens[w.seq];
    w.first_token = tile * tokens_per_piece;
    w.num_tokens = min(tokens_per_piece, query_len - w.first_token);
    w.context = w.seq_len - query_len;
    const int end = min(w.context + w.first_token + w.num_tokens, w.seq_len);
    w.tiles = end > 0 ? ceil_div(end, kTile) : 0;
    return w;
  }
};

// One warp: queries and, box by box as stages become free, tiles of K and V.
template <int kHeadDim>
__device__ void fetch(const Args& a, const CUtensorMap* query_map, const CUtensorMap* map, std::byte* queries,
                      std::byte* keys, std::byte* values, Shared& shared) {
  using S = Shape<kHeadDim>;
  const int lane = threadIdx.x % kWarpSize;
  const int boxes = kTile / a.box_rows;
  const int value_row = a.num_kv_heads * a.block_size;
  // A lane takes one panel of one box; boxes past the end are left out.
  const int first_slot = lane / S::kPanels * a.box_rows, panel = lane % S::kPanels;
  const int at = panel * kPanel + first_slot * 128;
  const Pieces pieces(a);
  Turn stage, piece;
  Work w = pieces.find(static_cast<int>(blockIdx.x));
#pragma unroll 1
  while (true) {
    barrier_wait(&shared.query_free[piece.stage], piece.phase ^ 1);
    uint64_t* full = &shared.query_full[piece.stage];
    if (lane == 0) {
      shared.work[piece.stage] = w;
      if (w.seq == a.num_seqs || w.tiles == 0) {
        barrier_arrive(full);
      } else {
        barrier_arrive_expecting(full, a.group * pieces.tokens_per_piece * S::kPanels * 128);
        for (int p = 0; p < S::kPanels; ++p) {
          copy_box(queries + piece.stage * S::kTileBytes + p * kPanel, query_map, p * 64, w.head * a.group,
                   w.begin + w.first_token, full);
        }
      }
    }
    __syncwarp();
    if (w.seq == a.num_seqs) break;
    piece.advance(kQueries);
    const Work next = pieces.find(pieces.claim());
    const int32_t* table = a.block_table + int64_t{w.seq} * a.max_blocks_per_seq;
#pragma unroll 1
    for (int j = 0; j < w.tiles; ++j) {
      const int slot = j * kTile + first_slot;
      const bool mine = lane < boxes * S::kPanels && slot < w.seq_len;
      int row = 0;
      if (mine) {
        row = (table[slot / a.block_size] * 2 * a.num_kv_heads + w.head) * a.block_size + slot % a.block_size;
      }
      const int bytes = min(boxes, ceil_div(w.seq_len - j * kTile, a.box_rows)) * a.box_rows * S::kPanels * 128;
      const int to = stage.stage * S::kTileBytes + at;
      barrier_wait(&shared.key_free[stage.stage], stage.phase ^ 1);
      if (lane == 0) barrier_arrive_expecting(&shared.key_full[stage.stage], bytes);
      __syncwarp();
      if (mine) copy_box(keys + to, map, panel * 64, row, &shared.key_full[stage.stage]);
      barrier_wait(&shared.value_free[stage.stage], stage.phase ^ 1);
      if (lane == 0) barrier_arrive_expecting(&shared.value_full[stage.stage], bytes);
      __syncwarp();
      if (mine) copy_box(values + to, map, panel * 64, row + value_row, &shared.value_full[stage.stage]);
      stage.advance(kStages);
    }
    w = next;
  }
  if (static_cast<int>(blockIdx.x) >= pieces.total) pieces.claim();
}

template <int kHeadDim>
struct Rows {
  using S = Shape<kHeadDim>;
  static constexpr int kScores = kTile / 2, kOut = kHeadDim / 2;  // accumulators of a thread

  float out[kOut];
  float maximum[2], sum[2], factor[2];
  int visible[2];     // slots that the thread's two rows see
  int64_t offset[2];  // of their output, or -1

  __device__ void scores(float (&s)[kScores], uint32_t queries, uint32_t keys) const {
    product_begin();
#pragma unroll
    for (int k = 0; k < kHeadDim / 16; ++k) {
      const int panel = k / 4 * kPanel, inside = k % 4 * 32;
      product_ss(s, operand(queries + panel + inside, 16, 1024), operand(keys + panel + inside, 16, 1024), k > 0);
    }
    product_commit();
  }
  __device__ void add_values(const uint32_t (&p)[kTile / 16][4], uint32_t values) {
    product_begin();
#pragma unroll
    for (int k = 0; k < kTile / 16; ++k) product_rs(out, p[k], operand(values + k * 16 * 128, kPanel, 1024));
    product_commit();
  }
  // s becomes 2^(scaled s - maximum); the factor for what was summed before is left in `factor`.
  __device__ void softmax(float (&s)[kScores], int tile, int first_visible, float scale_log2) {
    const int t = threadIdx.x % 4;
    if ((tile + 1) * kTile > first_visible) {
#pragma unroll
      for (int i = 0; i < kScores; ++i) {
        const int slot = tile * kTile + i / 4 * 8 + 2 * t + i % 2;
        if (slot >= visible[i % 4 / 2]) s[i] = -INFINITY;
      }
    }
    float next[2] = {maximum[0], maximum[1]};
#pragma unroll
    for (int i = 0; i < kScores; ++i) next[i % 4 / 2] = fmaxf(next[i % 4 / 2], s[i]);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      next[r] = fmaxf(next[r], __shfl_xor_sync(kFullMask, next[r], 1));
      next[r] = fmaxf(next[r], __shfl_xor_sync(kFullMask, next[r], 2));
      factor[r] = next[r] > maximum[r] ? exp2_fast((maximum[r] - next[r]) * scale_log2) : 1.0F;
      maximum[r] = next[r];
      sum[r] *= factor[r];
      next[r] = next[r] == -INFINITY ? 0.0F : next[r] * scale_log2;
    }
#pragma unroll
    for (int i = 0; i < kScores; ++i) {
      s[i] = exp2_fast(fmaf(s[i], scale_log2, -next[i % 4 / 2]));
      sum[i % 4 / 2] += s[i];
    }
  }
  __device__ void rescale() {
#pragma unroll
    for (int i = 0; i < kOut; ++i) out[i] *= factor[i % 4 / 2];
  }
};

// Slots past the end may hold anything, NaN too: their values count as zero.
template <int kHeadDim>
__device__ void clear_values(std::byte* values, int first_slot, int seq_len, int id) {
  const int rows = first_slot + kTile - seq_len;
  for (int c = threadIdx.x % kGroupThreads; c < rows * 8 * Shape<kHeadDim>::kPanels; c += kGroupThreads) {
    const int panel = c / (rows * 8), row = kTile - rows + c % (rows * 8) / 8;
    *reinterpret_cast<uint4*>(values + panel * kPanel + row * 128 + c % 8 * 16) = make_uint4(0, 0, 0, 0);
  }
  fence_async_proxy();
  sync_threads(id, kGroupThreads);
}

// One warpgroup: its 64 rows of a piece over all tiles. `stage` is where the rings of K and V stand.
template <int kHeadDim>
__device__ void attend(const Args& a, const Work& w, uint32_t q_at, std::byte* keys, std::byte* values, Shared& shared,
                       uint64_t* query_free, Turn& stage) {
  using S = Shape<kHeadDim>;
  using R = Rows<kHeadDim>;
  const int thread = threadIdx.x % kGroupThreads, consumer = threadIdx.x / kGroupThreads - 1, id = 1 + consumer;
  const int first_row = consumer * kGroupRows;

  R r;
#pragma unroll
  for (int i = 0; i < R::kOut; ++i) r.out[i] = 0.0F;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = first_row + thread / kWarpSize * 16 + thread % kWarpSize / 4 + 8 * i, token = row / a.group;
    const bool real = token < w.num_tokens;
    r.visible[i] = real ? min(max(w.context + w.first_token + token + 1, 0), w.seq_len) : 0;
    r.offset[i] = real ? int64_t{w.begin + w.first_token + token} * a.out_stride +
                             int64_t{w.head * a.group + row % a.group} * kHeadDim
                       : -1;
    r.maximum[i] = -INFINITY, r.sum[i] = 0.0F, r.factor[i] = 1.0F;
  }
  const int first_visible = w.context + w.first_token + first_row / a.group + 1;  // what the first row sees

  const uint32_t k_at = shared_address(keys), v_at = shared_address(values);
  float s[R::kScores];
  uint32_t p[kTile / 16][4];
  const auto pack_scores = [&] {
#pragma unroll
    for (int k = 0; k < kTile / 16; ++k) {
#pragma unroll
      for (int i = 0; i < 4; ++i) p[k][i] = pack(s[8 * k + 2 * i], s[8 * k + 2 * i + 1]);
    }
  };
  if (w.tiles > 0) {
    barrier_wait(&shared.key_full[stage.stage], stage.phase);
    r.scores(s, q_at, k_at + stage.stage * S::kTileBytes);
    product_wait<0>();
    pin(s);
    if (thread == 0) barrier_arrive(&shared.key_free[stage.stage]);
    r.softmax(s, 0, first_visible, a.scale_log2);
    pack_scores();
#pragma unroll 1
    for (int j = 0; j < w.tiles - 1; ++j) {
      Turn next = stage;
      next.advance(kStages);
      barrier_wait(&shared.key_full[next.stage], next.phase);
      barrier_wait(&shared.value_full[stage.stage], stage.phase);
      r.scores(s, q_at, k_at + next.stage * S::kTileBytes);
      r.add_values(p, v_at + stage.stage * S::kTileBytes);
      product_wait<1>();
      pin(s);
      if (thread == 0) barrier_arrive(&shared.key_free[next.stage]);
      r.softmax(s, j + 1, first_visible, a.scale_log2);
      product_wait<0>();
      pin(r.out);
      if (thread == 0) barrier_arrive(&shared.value_free[stage.stage]);
      r.rescale();
      pack_scores();
      stage = next;
    }
    if (thread == 0) barrier_arrive(query_free);
    barrier_wait(&shared.value_full[stage.stage], stage.phase);
    if (w.tiles * kTile > w.seq_len) {
      clear_values<kHeadDim>(values + stage.stage * S::kTileBytes, (w.tiles - 1) * kTile, w.seq_len, id);
    }
    r.add_values(p, v_at + stage.stage * S::kTileBytes);
    product_wait<0>();
    pin(r.out);
    if (thread == 0) barrier_arrive(&shared.value_free[stage.stage]);
    stage.advance(kStages);
  } else {
    if (thread == 0) barrier_arrive(query_free);
  }

  const int t = thread % 4;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    r.sum[i] += __shfl_xor_sync(kFullMask, r.sum[i], 1);
    r.sum[i] += __shfl_xor_sync(kFullMask, r.sum[i], 2);
    if (r.offset[i] < 0) continue;
    const float inverse = r.sum[i] > 0.0F ? 1.0F / r.sum[i] : 0.0F;
    auto* to = reinterpret_cast<uint32_t*>(a.out + r.offset[i]);
#pragma unroll
    for (int n = 0; n < kHeadDim / 8; ++n)
      to[n * 4 + t] = pack(r.out[4 * n + 2 * i] * inverse, r.out[4 * n + 2 * i + 1] * inverse);
  }
}

template <int kHeadDim>
__device__ void consume(const Args& a, std::byte* queries, std::byte* keys, std::byte* values, Shared& shared) {
  using S = Shape<kHeadDim>;
  const int consumer = threadIdx.x / kGroupThreads - 1;
  const uint32_t q_at = shared_address(queries) + consumer * kGroupRows * 128;
  Turn stage, piece;
#pragma unroll 1
  while (true) {
    barrier_wait(&shared.query_full[piece.stage], piece.phase);
    const Work w = shared.work[piece.stage];
    if (w.seq == a.num_seqs) return;
    sync_threads(1 + consumer, kGroupThreads);  // all have read it
    attend<kHeadDim>(a, w, q_at + piece.stage * S::kTileBytes, keys, values, shared, &shared.query_free[piece.stage],
                     stage);
    piece.advance(kQueries);
  }
}

template <int kHeadDim>
__global__ void __launch_bounds__(kThreads, 1)
    prefill_hopper_kernel(const __grid_constant__ Args a, const __grid_constant__ CUtensorMap query_map,
                          const __grid_constant__ CUtensorMap map) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using S = Shape<kHeadDim>;
  extern __shared__ std::byte unaligned[];
  __shared__ Shared shared;
  std::byte* queries = unaligned + (1024 - shared_address(unaligned) % 1024) % 1024;
  std::byte* keys = queries + kQueries * S::kTileBytes;
  std::byte* values = keys + kStages * S::kTileBytes;
  if (threadIdx.x == 0) {
    prefetch_map(&query_map);
    prefetch_map(&map);
    for (int i = 0; i < kStages; ++i) {
      barrier_init(&shared.key_full[i], 1);
      barrier_init(&shared.value_full[i], 1);
      barrier_init(&shared.key_free[i], kConsumers);
      barrier_init(&shared.value_free[i], kConsumers);
    }
    for (int i = 0; i < kQueries; ++i) {
      barrier_init(&shared.query_full[i], 1);
      barrier_init(&shared.query_free[i], kConsumers);
    }
    barrier_init_done();
  }
  wait_for_previous();
  // Tokens behind the last sequence become zero.
  const int columns = a.num_kv_heads * a.group * kHeadDim;
  for (int64_t token = a.query_start_loc[a.num_seqs] + static_cast<int>(blockIdx.x); token < a.num_tokens;
       token += gridDim.x) {
    for (int i = threadIdx.x; i < columns; i += kThreads) a.out[token * a.out_stride + i] = bf16(0.0F);
  }
  __syncthreads();
  if (threadIdx.x < kGroupThreads) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;\n");
    if (threadIdx.x < kWarpSize) fetch<kHeadDim>(a, &query_map, &map, queries, keys, values, shared);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;\n");
    consume<kHeadDim>(a, queries, keys, values, shared);
  }
#endif
}

// ---- launcher ----

template <int kHeadDim>
void launch_prefill(const Launch& launch, const Args& a, const CUtensorMap& query_map, const CUtensorMap& map) {
  using S = Shape<kHeadDim>;
  check(cudaFuncSetAttribute(prefill_hopper_kernel<kHeadDim>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             S::kSharedBytes),
        "attention_prefill");
  const int most = ((a.num_tokens - a.first_seq) / (kRows / a.group) + a.num_seqs - a.first_seq) * a.num_kv_heads;
  run(launch, prefill_hopper_kernel<kHeadDim>, std::min(launch.num_sms, most), kThreads, S::kSharedBytes, a, query_map,
      map);
}

}  // namespace

bool serves_prefill_hopper(const Launch& launch, const AttentionParams& p) {
  const KvGeometry& g = p.kv.geometry;
  return launch.compute_capability == 90 && g.dtype == DType::kBF16 && (g.head_dim == 64 || g.head_dim == 128);
}

void attention_prefill_hopper(const Launch& launch, const AttentionParams& p, int first_seq) {
  const KvGeometry& g = p.kv.geometry;
  Args a{};
  a.out = static_cast<bf16*>(p.out.data);
  a.out_stride = p.out.stride;
  a.first_seq = first_seq;
  a.num_seqs = p.batch.num_seqs;
  a.group = p.num_heads / g.num_kv_heads;
  a.max_blocks_per_seq = p.batch.max_blocks_per_seq;
  a.num_tokens = p.batch.num_tokens;
  a.block_size = g.block_size;
  a.num_kv_heads = g.num_kv_heads;
  // The largest box that neither crosses a block nor a tile.
  a.box_rows = g.block_size % 128 == 0 ? 128 : g.block_size % 64 == 0 ? 64 : g.block_size % 32 == 0 ? 32 : 16;
  a.scale_log2 = p.scale * kLog2e;
  a.query_start_loc = p.batch.query_start_loc;
  a.seq_lens = p.batch.seq_lens;
  a.block_table = p.batch.block_table;
  a.counter = launch.counters;
  const CUtensorMap query_map =
      make_heads_map(p.q.data, p.batch.num_tokens, p.num_heads, g.head_dim, p.q.stride, a.group, kRows / a.group);
  const KvLayout kv(p.kv);
  const int64_t rows = int64_t{g.num_blocks} * 2 * g.num_kv_heads * g.block_size;
  const CUtensorMap map = make_tensor_map(kv.data + p.layer * kv.layer_bytes, rows, g.head_dim, g.head_dim, a.box_rows);
  if (g.head_dim == 64) {
    launch_prefill<64>(launch, a, query_map, map);
  } else {
    launch_prefill<128>(launch, a, query_map, map);
  }
}

}  // namespace zipage::cuda
