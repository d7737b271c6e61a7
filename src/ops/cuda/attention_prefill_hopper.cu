// Causal attention of whole chunks on Hopper: warpgroup matrix products, K and V brought by the tensor copy engine.
//
// A block takes 128 rows, row = token * group + head of the group, of one KV head. One warp fetches tiles of 128 slots
// block by block of the pool; two warpgroups own 64 rows each. A warpgroup starts the scores of the next tile before
// the output product of this one, so that its exponentials run beside a product.
#include "ops/cuda/hopper.cuh"
#include "ops/cuda/launch.h"
#include "ops/cuda/tensor_map.h"

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
constexpr int kPanel = kTile * 128;  // bytes of 64 columns of a tile
static_assert(kRows == kTile);       // so Q's panels are as large

template <int kHeadDim>
struct Shape {
  static constexpr int kPanels = kHeadDim / 64;
  static constexpr int kTileBytes = kPanels * kPanel;
  static constexpr int kSharedBytes = (1 + 2 * kStages) * kTileBytes + 1024;  // to align the first panel
};

struct Args {
  const bf16* q;
  int64_t q_stride;
  bf16* out;
  int64_t out_stride;
  int first_seq, num_seqs, group, max_blocks_per_seq, num_tokens;
  int block_size, num_kv_heads, box_rows;
  float scale_log2;
  const int32_t *query_start_loc, *seq_lens, *block_table;
};

struct Barriers {
  uint64_t key_full[kStages], key_free[kStages], value_full[kStages], value_free[kStages];
};

// The rows of one block.
struct Work {
  int seq, seq_len, begin, first_token, num_tokens, context, tiles;
};

// ---- kernels ----

// Blocks without work get seq = num_seqs and their number among those in first_token.
[[maybe_unused]] __device__ Work find_work(const Args& a) {
  const int tokens_per_block = kRows / a.group;
  Work w{};
  int tile = static_cast<int>(gridDim.x - 1 - blockIdx.x), query_len = 0;  // late tokens see the most: they start first
  for (w.seq = a.first_seq; w.seq < a.num_seqs; ++w.seq) {
    w.begin = a.query_start_loc[w.seq];
    query_len = a.query_start_loc[w.seq + 1] - w.begin;
    const int tiles = ceil_div(query_len, tokens_per_block);
    if (tile < tiles) break;
    tile -= tiles;
  }
  if (w.seq >= a.num_seqs) {
    w.first_token = tile;
    return w;
  }
  w.seq_len = a.seq_lens[w.seq];
  w.first_token = tile * tokens_per_block;
  w.num_tokens = min(tokens_per_block, query_len - w.first_token);
  w.context = w.seq_len - query_len;
  const int end = min(w.context + w.first_token + w.num_tokens, w.seq_len);
  w.tiles = end > 0 ? ceil_div(end, kTile) : 0;
  return w;
}

// One warp: tiles of K and V, box by box, as stages become free.
template <int kHeadDim>
__device__ void fetch(const Args& a, const Work& w, const CUtensorMap* map, std::byte* keys, std::byte* values,
                      Barriers& barriers) {
  using S = Shape<kHeadDim>;
  const int lane = threadIdx.x % kWarpSize;
  const int boxes = kTile / a.box_rows;
  const int32_t* table = a.block_table + int64_t{w.seq} * a.max_blocks_per_seq;
  const int value_row = a.num_kv_heads * a.block_size;
  for (int j = 0; j < w.tiles; ++j) {
    const int stage = j % kStages, parity = (j / kStages & 1) ^ 1;
    // A lane takes one panel of one box; boxes past the end are left out.
    const int slot = j * kTile + lane / S::kPanels * a.box_rows, panel = lane % S::kPanels;
    const bool mine = lane < boxes * S::kPanels && slot < w.seq_len;
    int row = 0;
    if (mine) {
      row = (table[slot / a.block_size] * 2 * a.num_kv_heads + static_cast<int>(blockIdx.y)) * a.block_size +
            slot % a.block_size;
    }
    const int bytes = min(boxes, ceil_div(w.seq_len - j * kTile, a.box_rows)) * a.box_rows * S::kPanels * 128;
    const int at = stage * S::kTileBytes + panel * kPanel + lane / S::kPanels * a.box_rows * 128;
    barrier_wait(&barriers.key_free[stage], parity);
    if (lane == 0) barrier_arrive_expecting(&barriers.key_full[stage], bytes);
    __syncwarp();
    if (mine) copy_box(keys + at, map, panel * 64, row, &barriers.key_full[stage]);
    barrier_wait(&barriers.value_free[stage], parity);
    if (lane == 0) barrier_arrive_expecting(&barriers.value_full[stage], bytes);
    __syncwarp();
    if (mine) copy_box(values + at, map, panel * 64, row + value_row, &barriers.value_full[stage]);
  }
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

// One warpgroup: its 64 rows over all tiles.
template <int kHeadDim>
__device__ void consume(const Args& a, const Work& w, std::byte* queries, std::byte* keys, std::byte* values,
                        Barriers& barriers) {
  using S = Shape<kHeadDim>;
  using R = Rows<kHeadDim>;
  const int thread = threadIdx.x % kGroupThreads, consumer = threadIdx.x / kGroupThreads - 1, id = 1 + consumer;
  const int head = blockIdx.y, first_row = consumer * kGroupRows;

  for (int c = thread; c < kGroupRows * S::kPanels * 8; c += kGroupThreads) {
    const int row = first_row + c / (S::kPanels * 8), chunk = c % (S::kPanels * 8);
    const int token = row / a.group;
    uint4 v = make_uint4(0, 0, 0, 0);
    if (token < w.num_tokens) {
      const bf16* from = a.q + int64_t{w.begin + w.first_token + token} * a.q_stride +
                         int64_t{head * a.group + row % a.group} * kHeadDim;
      v = reinterpret_cast<const uint4*>(from)[chunk];
    }
    *reinterpret_cast<uint4*>(queries + chunk / 8 * kPanel + row * 128 + ((chunk % 8) ^ (row % 8)) * 16) = v;
  }
  fence_async_proxy();
  sync_threads(id, kGroupThreads);

  R r;
#pragma unroll
  for (int i = 0; i < R::kOut; ++i) r.out[i] = 0.0F;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = first_row + thread / kWarpSize * 16 + thread % kWarpSize / 4 + 8 * i, token = row / a.group;
    const bool real = token < w.num_tokens;
    r.visible[i] = real ? min(max(w.context + w.first_token + token + 1, 0), w.seq_len) : 0;
    r.offset[i] = real ? int64_t{w.begin + w.first_token + token} * a.out_stride +
                             int64_t{head * a.group + row % a.group} * kHeadDim
                       : -1;
    r.maximum[i] = -INFINITY, r.sum[i] = 0.0F, r.factor[i] = 1.0F;
  }
  const int first_visible = w.context + w.first_token + first_row / a.group + 1;  // what the first row sees

  const uint32_t q_at = shared_address(queries) + first_row * 128, k_at = shared_address(keys),
                 v_at = shared_address(values);
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
    barrier_wait(&barriers.key_full[0], 0);
    r.scores(s, q_at, k_at);
    product_wait<0>();
    pin(s);
    if (thread == 0) barrier_arrive(&barriers.key_free[0]);
    r.softmax(s, 0, first_visible, a.scale_log2);
    pack_scores();
    for (int j = 0; j < w.tiles - 1; ++j) {
      const int stage = j % kStages, next = (j + 1) % kStages;
      barrier_wait(&barriers.key_full[next], (j + 1) / kStages & 1);
      barrier_wait(&barriers.value_full[stage], j / kStages & 1);
      r.scores(s, q_at, k_at + next * S::kTileBytes);
      r.add_values(p, v_at + stage * S::kTileBytes);
      product_wait<1>();
      pin(s);
      if (thread == 0) barrier_arrive(&barriers.key_free[next]);
      r.softmax(s, j + 1, first_visible, a.scale_log2);
      product_wait<0>();
      pin(r.out);
      if (thread == 0) barrier_arrive(&barriers.value_free[stage]);
      r.rescale();
      pack_scores();
    }
    const int last = w.tiles - 1, stage = last % kStages;
    barrier_wait(&barriers.value_full[stage], last / kStages & 1);
    if (w.tiles * kTile > w.seq_len) {
      clear_values<kHeadDim>(values + stage * S::kTileBytes, last * kTile, w.seq_len, id);
    }
    r.add_values(p, v_at + stage * S::kTileBytes);
    product_wait<0>();
    pin(r.out);
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
__global__ void __launch_bounds__(kThreads, 1)
    prefill_hopper_kernel(const __grid_constant__ Args a, const __grid_constant__ CUtensorMap map) {
  wait_for_previous();
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using S = Shape<kHeadDim>;
  extern __shared__ std::byte unaligned[];
  __shared__ Barriers barriers;
  std::byte* queries = unaligned + (1024 - shared_address(unaligned) % 1024) % 1024;
  std::byte* keys = queries + S::kTileBytes;
  std::byte* values = keys + kStages * S::kTileBytes;

  const Work w = find_work(a);
  if (w.seq >= a.num_seqs) {
    // Blocks without work, at least one, clear the tokens behind the last sequence.
    const int columns = a.group * kHeadDim, spare = static_cast<int>(blockIdx.x) + 1 + w.first_token;
    for (int64_t token = a.query_start_loc[a.num_seqs] + w.first_token; token < a.num_tokens; token += spare) {
      for (int i = threadIdx.x; i < columns; i += kThreads)
        a.out[token * a.out_stride + blockIdx.y * columns + i] = bf16(0.0F);
    }
    return;
  }
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      barrier_init(&barriers.key_full[i], 1);
      barrier_init(&barriers.value_full[i], 1);
      barrier_init(&barriers.key_free[i], kConsumers);
      barrier_init(&barriers.value_free[i], kConsumers);
    }
    barrier_init_done();
  }
  __syncthreads();
  if (threadIdx.x < kGroupThreads) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 24;\n");
    if (threadIdx.x < kWarpSize) fetch<kHeadDim>(a, w, &map, keys, values, barriers);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 240;\n");
    consume<kHeadDim>(a, w, queries, keys, values, barriers);
  }
#endif
}

// ---- launcher ----

template <int kHeadDim>
void launch_prefill(const Launch& launch, const Args& a, const CUtensorMap& map) {
  using S = Shape<kHeadDim>;
  check(cudaFuncSetAttribute(prefill_hopper_kernel<kHeadDim>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             S::kSharedBytes),
        "attention_prefill");
  const int tiles = (a.num_tokens - a.first_seq) / (kRows / a.group) + a.num_seqs - a.first_seq +
                    1;  // at least one more than there are
  run(launch, prefill_hopper_kernel<kHeadDim>, dim3(tiles, a.num_kv_heads), kThreads, S::kSharedBytes, a, map);
}

}  // namespace

bool serves_prefill_hopper(const Launch& launch, const AttentionParams& p) {
  const KvGeometry& g = p.kv.geometry;
  return launch.compute_capability == 90 && g.dtype == DType::kBF16 && (g.head_dim == 64 || g.head_dim == 128);
}

void attention_prefill_hopper(const Launch& launch, const AttentionParams& p, int first_seq) {
  const KvGeometry& g = p.kv.geometry;
  Args a{};
  a.q = static_cast<const bf16*>(p.q.data);
  a.q_stride = p.q.stride;
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
  const KvLayout kv(p.kv);
  const int64_t rows = int64_t{g.num_blocks} * 2 * g.num_kv_heads * g.block_size;
  const CUtensorMap map = make_tensor_map(kv.data + p.layer * kv.layer_bytes, rows, g.head_dim, g.head_dim, a.box_rows);
  if (g.head_dim == 64) {
    launch_prefill<64>(launch, a, map);
  } else {
    launch_prefill<128>(launch, a, map);
  }
}

}  // namespace zipage::cuda
