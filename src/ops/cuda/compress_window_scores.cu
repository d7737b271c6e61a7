// Stage 1: how much the window's queries look at each slot, on tensor cores.
//
// As in decode attention the product is transposed: 16 slots by 8 window rows of one query head, so the maximum over
// the heads of a group is elementwise in registers and the mean over the rows a sum over columns. The first kernel
// leaves every chunk's maximum and sum of each row, a small one brings them together into one offset a row, and the
// last makes the product again, p = 2^(z - offset): K is read twice, the logits [rows, slots] never exist. The maximum
// over the heads is taken of z - offset, which has the order of p, so one exponential a row is enough.
//
// Blocks stay, each on a stretch of the units' chunks of slots one after the other: queries are read once a unit where
// all of them fit, and a warp's next keys come (fp8's are there) before it works on these, which lie in registers.
//
// Where a sequence's slots fit into a cluster's blocks, K is read once (compress_window_scores_cluster.cu).
#include <algorithm>

#include "ops/cuda/compress_window_scores.cuh"

namespace zipage::cuda {
namespace {

// ---- numbers ----
constexpr int kWarps = 4;
constexpr int kThreads = kWarps * kWarpSize;
constexpr int kSlotsPerWarp = 32;
constexpr int kChunk = kWarps * kSlotsPerWarp;

// On a multiprocessor: keys lie in registers.
constexpr int blocks_at_once(int head_dim) {
  return head_dim > 128 ? 2 : 4;
}

struct Args : WindowScores {
  int tiles_at_once;                         // row tiles that lie in shared memory at a time
  int chunks, all_chunks, chunks_per_block;  // of kChunk slots: of a unit, of all units
  // [units, row tiles, chunks, group, kRows] maximum and sum, in log2
  float2* stats;
  // [units, row tiles, group, kRows] log2 of the softmax's denominator; +inf: the row gives nothing
  float* offsets;
};

// ---- kernels ----

// The warp's slots from `first` on, in two stretches of slots that lie one after the other.
template <bool kFp8, int kHeadDim>
__device__ __forceinline__ void load_keys(const Args& a, int unit, int first, std::byte* keys) {
  constexpr int kRowBytes = kHeadDim * 2;
#pragma unroll
  for (int m = 0; m < kSlotsPerWarp / kSegment; ++m) {
    std::byte* to = keys + m * kSegment * kRowBytes;
    load_segment<kHeadDim, kFp8>(a.source, unit, first + m * kSegment,
                                 [&](int slot, int chunk) { return to + swizzle<kRowBytes>(slot, chunk); });
  }
  copy_commit();
}

// Row tiles [first_tile, last_tile) of every head of the group, [tile, group, kRows, head_dim]; rows past the window
// are zero.
template <int kHeadDim>
__device__ void load_queries(const Args& a, int unit, int first_tile, int last_tile, std::byte* queries) {
  constexpr int kRowBytes = kHeadDim * 2, kChunks = kRowBytes / 16;
  const bf16* ring = unit_queries(a, unit, kHeadDim);
  int line = 0;  // kRows lines a head
  for (int tile = first_tile; tile < last_tile; ++tile) {
    for (int head = 0; head < a.group; ++head, line += kRows) {
      for (int c = threadIdx.x; c < kRows * kChunks; c += kThreads) {
        const int row = tile * kRows + c / kChunks, column = c % kChunks;
        const bf16* from = ring + (int64_t{ring_row(a, row < a.window ? row : 0)} * a.num_heads + head) * kHeadDim;
        copy_async16(shared_address(queries + swizzle<kRowBytes>(line + c / kChunks, column)),
                     reinterpret_cast<const uint4*>(from) + column, row < a.window);
      }
    }
  }
  copy_commit();
}

template <bool kFp8, int kHeadDim, bool kSecond>
__global__ void __launch_bounds__(kThreads, blocks_at_once(kHeadDim)) window_kernel(const __grid_constant__ Args a) {
  wait_for_previous();
  constexpr int kSteps = kHeadDim / 16, kRowBytes = kHeadDim * 2;
  extern __shared__ __align__(128) std::byte shared[];
  const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize, g = lane / 4, t = lane % 4;
  const int num_slots = a.source.num_slots, lines = a.group * kRows;
  std::byte* keys = shared + warp * kSlotsPerWarp * kRowBytes;  // [kWarps, kSlotsPerWarp, head_dim]
  std::byte* queries = shared + kChunk * kRowBytes;             // [tiles_at_once, group, kRows, head_dim]
  std::byte* behind = queries + a.tiles_at_once * lines * kRowBytes;
  auto* columns = reinterpret_cast<float2*>(behind);  // first: [kWarps, group, kRows]
  auto* offsets = reinterpret_cast<float*>(behind);   // second: [row tiles, group, kRows]
  const float scale_log2 = a.scale_log2;

  const auto fetch = [&](int unit, int chunk) {
    load_keys<kFp8, kHeadDim>(a, unit, chunk * kChunk + warp * kSlotsPerWarp, keys);
  };
  // In a tile of kRows queries; tiles begin where the swizzle does.
  uint32_t query_column[kSteps / 2];
#pragma unroll
  for (int k = 0; k < kSteps; k += 2) query_column[k / 2] = swizzle<kRowBytes>(lane % 8, 2 * k + lane / 8);
  // The second kernel starts where the first ended: those keys may still lie in the cache.
  const int index = kSecond ? static_cast<int>(gridDim.x - 1 - blockIdx.x) : static_cast<int>(blockIdx.x);
  int left = min(a.chunks_per_block, a.all_chunks - index * a.chunks_per_block);
  int next_unit = index * a.chunks_per_block / a.chunks, next_chunk = index * a.chunks_per_block % a.chunks;
  fetch(next_unit, next_chunk);
  int loaded_unit = -1;
#pragma unroll 1
  for (; left > 0; --left) {
    const int unit = next_unit, chunk = next_chunk;
    if (++next_chunk == a.chunks) next_chunk = 0, ++next_unit;
    if (unit != loaded_unit) {
      __syncthreads();  // nobody reads the last one's any more
      load_queries<kHeadDim>(a, unit, 0, min(a.tiles_at_once, a.row_tiles), queries);
      if constexpr (kSecond) {
        const float* from = a.offsets + int64_t{unit} * a.row_tiles * lines;
        for (int i = threadIdx.x; i < a.row_tiles * lines; i += kThreads) offsets[i] = from[i];
      }
      copy_wait<0>();
      __syncthreads();
      loaded_unit = a.row_tiles > a.tiles_at_once ? -1 : unit;  // not all of them fit: the first ones come again
    }
    const bool all_visible = (chunk + 1) * kChunk <= num_slots - a.window * a.row_stride;
    int first_visible[2][2] = {};  // the first window row that sees the lane's slots
    if (!all_visible) {
#pragma unroll
      for (int m = 0; m < 2; ++m) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int slot = chunk * kChunk + warp * kSlotsPerWarp + m * 16 + g + 8 * i;
          first_visible[m][i] = first_row_seeing(a, unit, slot);
        }
      }
    }
    const float scale = scale_log2 * (kFp8 ? a.source.k_scale[unit] : 1.0F);  // positive: maxima may be taken before it
    copy_wait<0>();
    __syncwarp();
    uint32_t fragments[2][kSteps][4];
#pragma unroll
    for (int m = 0; m < 2; ++m) {
#pragma unroll
      for (int k = 0; k < kSteps; ++k) {
        load_matrices(fragments[m][k],
                      shared_address(keys + swizzle<kRowBytes>(m * 16 + (lane & 15), 2 * k + (lane >> 4))));
      }
    }
    __syncwarp();  // every lane has read them
    if (left > 1) fetch(next_unit, next_chunk);

    float total[2][2] = {};
    for (int row_tile = 0; row_tile < a.row_tiles; ++row_tile) {
      const int staged = row_tile % a.tiles_at_once;
      if (row_tile > 0 && staged == 0) {
        __syncthreads();
        load_queries<kHeadDim>(a, unit, row_tile, min(row_tile + a.tiles_at_once, a.row_tiles), queries);
        copy_wait<0>();
        __syncthreads();
      }
      float top[2][4];
#pragma unroll
      for (int m = 0; m < 2; ++m) {
#pragma unroll
        for (int i = 0; i < 4; ++i) top[m][i] = -INFINITY;
      }
      for (int head = 0; head < a.group; ++head) {
        const uint32_t query_tile = shared_address(queries) + (staged * lines + head * kRows) * kRowBytes;
        float s[2][4] = {}, odd[2][4] = {};  // two sums each, so that products wait for each other half as long
#pragma unroll
        for (int k = 0; k < kSteps; k += 2) {
          uint32_t b[4];
          load_matrices(b, query_tile + query_column[k / 2]);
#pragma unroll
          for (int m = 0; m < 2; ++m) {
            mma<Bf16Math>(s[m], fragments[m][k], b[0], b[1]);
            mma<Bf16Math>(odd[m], fragments[m][k + 1], b[2], b[3]);
          }
        }
#pragma unroll
        for (int m = 0; m < 2; ++m) {
#pragma unroll
          for (int i = 0; i < 4; ++i) s[m][i] += odd[m][i];
        }
        if (!all_visible) {
#pragma unroll
          for (int m = 0; m < 2; ++m) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
              if (row_tile * kRows + 2 * t + i % 2 < first_visible[m][i / 2]) s[m][i] = -INFINITY;
            }
          }
        }
        if constexpr (kSecond) {
          const float2 offset = reinterpret_cast<const float2*>(offsets + row_tile * lines + head * kRows)[t];
#pragma unroll
          for (int m = 0; m < 2; ++m) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
              top[m][i] = fmaxf(top[m][i], fmaf(s[m][i], scale, i % 2 == 0 ? -offset.x : -offset.y));
            }
          }
        } else {
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            float maximum = fmaxf(fmaxf(s[0][i], s[0][i + 2]), fmaxf(s[1][i], s[1][i + 2]));
            maximum = fmaxf(maximum, __shfl_xor_sync(kFullMask, maximum, 4));
            maximum = fmaxf(maximum, __shfl_xor_sync(kFullMask, maximum, 8));
            maximum = fmaxf(maximum, __shfl_xor_sync(kFullMask, maximum, 16));
            maximum *= scale;
            const float base = maximum == -INFINITY ? 0.0F : -maximum;
            float sum = exp2_fast(fmaf(s[0][i], scale, base)) + exp2_fast(fmaf(s[0][i + 2], scale, base)) +
                        exp2_fast(fmaf(s[1][i], scale, base)) + exp2_fast(fmaf(s[1][i + 2], scale, base));
            sum += __shfl_xor_sync(kFullMask, sum, 4);
            sum += __shfl_xor_sync(kFullMask, sum, 8);
            sum += __shfl_xor_sync(kFullMask, sum, 16);
            if (g == 0) columns[warp * lines + head * kRows + 2 * t + i] = make_float2(maximum, sum);
          }
        }
      }

      if constexpr (kSecond) {
#pragma unroll
        for (int m = 0; m < 2; ++m) {
          total[m][0] += exp2_fast(top[m][0]) + exp2_fast(top[m][1]);
          total[m][1] += exp2_fast(top[m][2]) + exp2_fast(top[m][3]);
        }
      } else {
        __syncthreads();
        float2* stats = a.stats + ((int64_t{unit} * a.row_tiles + row_tile) * a.chunks + chunk) * lines;
        for (int i = threadIdx.x; i < lines; i += kThreads) {
          float2 all = columns[i];
          for (int w = 1; w < kWarps; ++w) all = merge(all, columns[w * lines + i]);
          stats[i] = all;
        }
        __syncthreads();
      }
    }

    if constexpr (kSecond) {
#pragma unroll
      for (int m = 0; m < 2; ++m) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          float v = total[m][i];
          v += __shfl_xor_sync(kFullMask, v, 1);
          v += __shfl_xor_sync(kFullMask, v, 2);
          const int slot = chunk * kChunk + warp * kSlotsPerWarp + m * 16 + g + 8 * i;
          if (t == 0 && slot < num_slots) a.scores[int64_t{unit} * num_slots + slot] = v / static_cast<float>(a.window);
        }
      }
    }
  }
}

__global__ void offsets_kernel(const __grid_constant__ Args a) {
  wait_for_previous();
  const int num_chunks = a.chunks;
  const int lines = a.group * kRows, count = a.row_tiles * lines;
  for (int i = threadIdx.x; i < count; i += blockDim.x) {
    const int row_tile = i / lines, line = i % lines;
    const float2* stats = a.stats + (int64_t{blockIdx.x} * a.row_tiles + row_tile) * num_chunks * lines + line;
    float2 all = make_float2(-INFINITY, 0.0F);
#pragma unroll 8
    for (int c = 0; c < num_chunks; ++c) all = merge(all, stats[int64_t{c} * lines]);
    a.offsets[int64_t{blockIdx.x} * count + i] = row_tile * kRows + line % kRows < a.window ? offset_of(all) : INFINITY;
  }
}

// ---- launcher ----

constexpr int kQueryBytes = 48 * 1024;  // of shared memory for queries, where one row tile takes no more

template <bool kFp8, int kHeadDim>
void launch_window(const Launch& launch, Args a) {
  const int units = a.source.num_units(), lines = a.group * kRows;
  const int tile_bytes = lines * kHeadDim * 2, fit = kQueryBytes / tile_bytes;
  a.tiles_at_once = fit < 1 ? 1 : fit < a.row_tiles ? fit : a.row_tiles;
  const int fixed = kChunk * kHeadDim * 2 + a.tiles_at_once * tile_bytes;
  const int first_bytes = fixed + kWarps * lines * static_cast<int>(sizeof(float2));
  const int second_bytes = fixed + a.row_tiles * lines * static_cast<int>(sizeof(float));
  const auto first = window_kernel<kFp8, kHeadDim, false>, second = window_kernel<kFp8, kHeadDim, true>;
  check(cudaFuncSetAttribute(first, cudaFuncAttributeMaxDynamicSharedMemorySize, first_bytes), "window_scores");
  check(cudaFuncSetAttribute(second, cudaFuncAttributeMaxDynamicSharedMemorySize, second_bytes), "window_scores");
  const int blocks = launch.num_sms * std::clamp(launch.max_shared_bytes / std::max(first_bytes, second_bytes), 1,
                                                 blocks_at_once(kHeadDim));
  a.chunks = ceil_div(a.source.num_slots, kChunk);
  a.all_chunks = a.chunks * units;
  a.chunks_per_block = ceil_div(a.all_chunks, blocks);
  const int used = ceil_div(a.all_chunks, a.chunks_per_block);
  run(launch, first, used, kThreads, first_bytes, a);
  run(launch, offsets_kernel, units, kThreads, 0, a);
  run(launch, second, used, kThreads, second_bytes, a);
}

// [units, row tiles, group, kRows] in all.
size_t num_rows(const KvGeometry& g, int num_heads, int window) {
  return static_cast<size_t>(g.num_layers) * num_heads * ceil_div(window, kRows) * kRows;
}

}  // namespace

size_t window_scores_scratch_bytes(const KvGeometry& g, int num_heads, int window, int num_slots) {
  return num_rows(g, num_heads, window) * (ceil_div(num_slots, kChunk) * sizeof(float2) + sizeof(float));
}

WindowScores window_args(const WindowScoreParams& p) {
  const KvGeometry& g = p.source.kv.geometry;
  const int64_t slot_elements = int64_t{p.ring.window} * p.num_heads * g.head_dim;
  const int rows = p.ring.num_rows(p.source.logical_len());
  const int first_position = p.ring.first_position(p.source.logical_len());
  return {.source = Source(p.source),
          .ring = static_cast<const bf16*>(p.ring.data) + p.query_slot * slot_elements,
          .ring_layer = p.ring.num_query_slots * slot_elements,
          .num_heads = p.num_heads,
          .group = p.num_heads / g.num_kv_heads,
          .window = rows,
          .first_row_position = first_position,
          .row_stride = p.ring.stride,
          .ring_rows = p.ring.window,
          .oldest = p.ring.row(first_position),
          .row_tiles = ceil_div(rows, kRows),
          .scale_log2 = p.scale * kLog2e,
          .scores = p.scores};
}

void window_scores(const Launch& launch, const WindowScoreParams& p) {
  Args a{window_args(p)};
  if (serves_window_cluster(launch, a)) return window_scores_cluster(launch, a);
  a.stats = reinterpret_cast<float2*>(p.scratch);
  a.offsets = reinterpret_cast<float*>(a.stats + num_rows(p.source.kv.geometry, p.num_heads, p.ring.window) *
                                                     ceil_div(p.source.num_slots, kChunk));
  dispatch<64, 96, 128, 256>(a.source.geometry.head_dim, [&]<int kHeadDim>() {
    if (a.source.kv.is_fp8) {
      launch_window<true, kHeadDim>(launch, a);
    } else {
      launch_window<false, kHeadDim>(launch, a);
    }
  });
}

}  // namespace zipage::cuda
