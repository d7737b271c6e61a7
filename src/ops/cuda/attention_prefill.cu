// Causal attention of whole chunks over the paged pool, for every machine from sm_80 on.
//
// The query heads of a group are packed with the tokens, row = token * group + head, so K and V are read once for all
// of them. A block takes 64 such rows of one KV head and walks the visible slots in tiles, two stages deep; each of its
// four warps owns 16 rows, their running softmax and their output.
#include "ops/cuda/device.cuh"
#include "ops/cuda/launch.h"

namespace zipage::cuda {
namespace {

// ---- numbers ----
constexpr int kWarps = 4;
constexpr int kThreads = kWarps * kWarpSize;
constexpr int kRows = kWarps * 16;
constexpr int kStages = 2;

template <int kHeadDim>
struct Shape {
  static constexpr int kTile = kHeadDim > 128 ? 32 : 64;  // slots
  static constexpr int kRowBytes = kHeadDim * 2;
  static constexpr int kTileBytes = kTile * kRowBytes;
  static constexpr int kSharedBytes = kStages * 2 * kTileBytes;
};

struct Args {
  const bf16* q;
  int64_t q_stride;
  bf16* out;
  int64_t out_stride;
  int first_seq, num_seqs, group, layer, max_blocks_per_seq;
  int num_tokens;  // of the whole batch
  float scale;
  const int32_t *query_start_loc, *seq_lens, *block_table;
  KvLayout kv;
  const float *k_scale, *v_scale;
};

// ---- kernels ----

template <bool kFp8, int kHeadDim>
__device__ void load_tile(const Args& a, const int32_t* table, int head, int first, int seq_len, uint32_t keys,
                          std::byte* stage) {
  using S = Shape<kHeadDim>;
  constexpr int kSourceChunks = kHeadDim * (kFp8 ? 1 : 2) / 16;
  for (int chunk = threadIdx.x; chunk < S::kTile * kSourceChunks; chunk += kThreads) {
    const int row = chunk / kSourceChunks, column = chunk % kSourceChunks, slot = first + row;
    const bool valid = slot < seq_len;
    const int index = valid ? slot : first;
    const std::byte* from =
        a.kv.key_row(a.layer, table[index / a.kv.block_size], head, index % a.kv.block_size) + column * 16;
    if constexpr (kFp8) {
#pragma unroll
      for (int part = 0; part < 2; ++part) {
        const uint4 v =
            valid ? *reinterpret_cast<const uint4*>(from + part * a.kv.value_offset) : make_uint4(0, 0, 0, 0);
        std::byte* to = stage + part * S::kTileBytes;
        *reinterpret_cast<uint4*>(to + swizzle<S::kRowBytes>(row, 2 * column)) =
            make_uint4(fp8x2_to_half2(v.x), fp8x2_to_half2(v.x >> 16), fp8x2_to_half2(v.y), fp8x2_to_half2(v.y >> 16));
        *reinterpret_cast<uint4*>(to + swizzle<S::kRowBytes>(row, 2 * column + 1)) =
            make_uint4(fp8x2_to_half2(v.z), fp8x2_to_half2(v.z >> 16), fp8x2_to_half2(v.w), fp8x2_to_half2(v.w >> 16));
      }
    } else {
      const uint32_t to = keys + swizzle<S::kRowBytes>(row, column);
      copy_async16(to, from, valid);
      copy_async16(to + S::kTileBytes, from + a.kv.value_offset, valid);
    }
  }
}

template <bool kFp8, int kHeadDim>
__global__ void __launch_bounds__(kThreads) prefill_kernel(const Args a) {
  wait_for_previous();
  using S = Shape<kHeadDim>;
  using Math = std::conditional_t<kFp8, HalfMath, Bf16Math>;
  constexpr int kSteps = kHeadDim / 16, kColumns = S::kTile / 8, kOutTiles = kHeadDim / 8;
  extern __shared__ __align__(128) std::byte shared[];
  const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize, g = lane / 4, t = lane % 4;

  // Which rows: late tokens see the most slots, so their blocks start first.
  const int tokens_per_block = kRows / a.group;
  int seq = a.first_seq, tile = static_cast<int>(gridDim.x - 1 - blockIdx.x);
  int begin = 0, query_len = 0;
  for (; seq < a.num_seqs; ++seq) {
    begin = a.query_start_loc[seq];
    query_len = a.query_start_loc[seq + 1] - begin;
    const int tiles = ceil_div(query_len, tokens_per_block);
    if (tile < tiles) break;
    tile -= tiles;
  }
  const int head = blockIdx.y;
  if (seq >= a.num_seqs) {
    // Blocks without a tile, at least one, clear the tokens behind the last sequence.
    const int columns = a.group * kHeadDim, spare = static_cast<int>(blockIdx.x) + 1 + tile;
    for (int64_t token = a.query_start_loc[a.num_seqs] + tile; token < a.num_tokens; token += spare) {
      for (int i = threadIdx.x; i < columns; i += kThreads)
        a.out[token * a.out_stride + head * columns + i] = bf16(0.0F);
    }
    return;
  }
  const int seq_len = a.seq_lens[seq];
  const int first_token = tile * tokens_per_block;
  const int num_tokens = min(tokens_per_block, query_len - first_token);
  const int context = seq_len - query_len;  // slots that every row sees
  const int32_t* table = a.block_table + int64_t{seq} * a.max_blocks_per_seq;

  // The lane's two rows.
  int row_token[2];
  int64_t row_offset[2];
  int visible[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = warp * 16 + g + 8 * i;
    row_token[i] = row / a.group;
    const bool real = row_token[i] < num_tokens;
    visible[i] = real ? min(max(context + first_token + row_token[i] + 1, 0), seq_len) : 0;
    row_offset[i] = real ? head * a.group + row % a.group : -1;
  }
  uint32_t q[kSteps][4];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int64_t token = begin + first_token + row_token[i];
    const auto* from = reinterpret_cast<const uint32_t*>(a.q + token * a.q_stride + row_offset[i] * kHeadDim);
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      uint32_t low = 0, high = 0;
      if (row_offset[i] >= 0) low = from[k * 8 + t], high = from[k * 8 + t + 4];
      if constexpr (kFp8) {
        const float2 x = unpack(low), y = unpack(high);
        low = pack_half(x.x, x.y), high = pack_half(y.x, y.y);
      }
      q[k][i] = low, q[k][i + 2] = high;
    }
  }

  const int end = min(context + first_token + num_tokens, seq_len);
  const int tiles = end > 0 ? ceil_div(end, S::kTile) : 0;
  const float scale_log2 = a.scale * kLog2e * (kFp8 ? a.k_scale[a.layer * a.kv.num_kv_heads + head] : 1.0F);
  float out[kOutTiles][4] = {};
  float maximum[2] = {-INFINITY, -INFINITY}, sum[2] = {0.0F, 0.0F};

  if (tiles > 0) load_tile<kFp8, kHeadDim>(a, table, head, 0, seq_len, shared_address(shared), shared);
  copy_commit();
  for (int j = 0; j < tiles; ++j) {
    std::byte* stage = shared + (j % kStages) * 2 * S::kTileBytes;
    if (j + 1 < tiles) {
      std::byte* next = shared + ((j + 1) % kStages) * 2 * S::kTileBytes;
      load_tile<kFp8, kHeadDim>(a, table, head, (j + 1) * S::kTile, seq_len, shared_address(next), next);
    }
    copy_commit();
    copy_wait<kStages - 1>();
    __syncthreads();
    const uint32_t keys = shared_address(stage), values = keys + S::kTileBytes;

    float s[kColumns][4] = {};
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
#pragma unroll
      for (int n = 0; n < kColumns; n += 2) {
        uint32_t b[4];  // slots n*8.. at elements 0-7 and 8-15 of the step, then the next eight slots
        load_matrices(b, keys + swizzle<S::kRowBytes>(n * 8 + (lane / 16) * 8 + lane % 8, 2 * k + (lane / 8) % 2));
        mma<Math>(s[n], q[k], b[0], b[1]);
        mma<Math>(s[n + 1], q[k], b[2], b[3]);
      }
    }

    const bool masked = (j + 1) * S::kTile > context + first_token + 1;
    float next[2] = {maximum[0], maximum[1]};
#pragma unroll
    for (int n = 0; n < kColumns; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const bool seen = !masked || j * S::kTile + n * 8 + 2 * t + i % 2 < visible[i / 2];
        s[n][i] = seen ? s[n][i] * scale_log2 : -INFINITY;
        next[i / 2] = fmaxf(next[i / 2], s[n][i]);
      }
    }
    float factor[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      next[i] = fmaxf(next[i], __shfl_xor_sync(kFullMask, next[i], 1));
      next[i] = fmaxf(next[i], __shfl_xor_sync(kFullMask, next[i], 2));
      factor[i] = next[i] > maximum[i] ? exp2_fast(maximum[i] - next[i]) : 1.0F;
      maximum[i] = next[i];
      sum[i] *= factor[i];
    }
#pragma unroll
    for (int n = 0; n < kOutTiles; ++n) {
      out[n][0] *= factor[0], out[n][1] *= factor[0], out[n][2] *= factor[1], out[n][3] *= factor[1];
    }
    const float base[2] = {maximum[0] == -INFINITY ? 0.0F : maximum[0], maximum[1] == -INFINITY ? 0.0F : maximum[1]};
#pragma unroll
    for (int n = 0; n < kColumns; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        s[n][i] = exp2_fast(s[n][i] - base[i / 2]);
        sum[i / 2] += s[n][i];
      }
    }

#pragma unroll
    for (int k = 0; k < kColumns / 2; ++k) {
      const uint32_t p[4] = {Math::pair(s[2 * k][0], s[2 * k][1]), Math::pair(s[2 * k][2], s[2 * k][3]),
                             Math::pair(s[2 * k + 1][0], s[2 * k + 1][1]),
                             Math::pair(s[2 * k + 1][2], s[2 * k + 1][3])};
#pragma unroll
      for (int n = 0; n < kOutTiles; n += 2) {
        uint32_t b[4];  // slots 0-7 and 8-15 of the step at elements n*8.., then at the next eight elements
        load_matrices_transposed(b, values + swizzle<S::kRowBytes>(k * 16 + lane % 16, n + lane / 16));
        mma<Math>(out[n], p, b[0], b[1]);
        mma<Math>(out[n + 1], p, b[2], b[3]);
      }
    }
    __syncthreads();  // the stage may be filled again
  }

  const float v_scale = kFp8 ? a.v_scale[a.layer * a.kv.num_kv_heads + head] : 1.0F;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    sum[i] += __shfl_xor_sync(kFullMask, sum[i], 1);
    sum[i] += __shfl_xor_sync(kFullMask, sum[i], 2);
    if (row_offset[i] < 0) continue;
    const float inverse = sum[i] > 0.0F ? v_scale / sum[i] : 0.0F;
    const int64_t token = begin + first_token + row_token[i];
    auto* to = reinterpret_cast<uint32_t*>(a.out + token * a.out_stride + row_offset[i] * kHeadDim);
#pragma unroll
    for (int n = 0; n < kOutTiles; ++n) to[n * 4 + t] = pack(out[n][2 * i] * inverse, out[n][2 * i + 1] * inverse);
  }
}

}  // namespace

// ---- launcher ----

namespace {

template <bool kFp8, int kHeadDim>
void launch_prefill(const Launch& launch, const Args& a, int num_tokens) {
  using S = Shape<kHeadDim>;
  check(cudaFuncSetAttribute(prefill_kernel<kFp8, kHeadDim>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             S::kSharedBytes),
        "attention_prefill");
  const int tiles = num_tokens / (kRows / a.group) + a.num_seqs - a.first_seq + 1;  // at least one more than there are
  run(launch, prefill_kernel<kFp8, kHeadDim>, dim3(tiles, a.kv.num_kv_heads), kThreads, S::kSharedBytes, a);
}

}  // namespace

void attention_prefill(const Launch& launch, const AttentionParams& p, int first_seq) {
  const KvGeometry& g = p.kv.geometry;
  Args a{};
  a.q = static_cast<const bf16*>(p.q.data);
  a.q_stride = p.q.stride;
  a.out = static_cast<bf16*>(p.out.data);
  a.out_stride = p.out.stride;
  a.first_seq = first_seq;
  a.num_seqs = p.batch.num_seqs;
  a.group = p.num_heads / g.num_kv_heads;
  a.layer = p.layer;
  a.max_blocks_per_seq = p.batch.max_blocks_per_seq;
  a.num_tokens = p.batch.num_tokens;
  a.scale = p.scale;
  a.query_start_loc = p.batch.query_start_loc;
  a.seq_lens = p.batch.seq_lens;
  a.block_table = p.batch.block_table;
  a.kv = KvLayout(p.kv);
  a.k_scale = p.kv.k_scale;
  a.v_scale = p.kv.v_scale;
  const int num_tokens = p.batch.num_tokens - first_seq;
  dispatch<64, 96, 128, 256>(g.head_dim, [&]<int kHeadDim>() {
    if (a.kv.is_fp8) {
      launch_prefill<true, kHeadDim>(launch, a, num_tokens);
    } else {
      launch_prefill<false, kHeadDim>(launch, a, num_tokens);
    }
  });
}

}  // namespace zipage::cuda
