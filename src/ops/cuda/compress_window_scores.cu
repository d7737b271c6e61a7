// Stage 1: how much the window's queries look at each slot, on tensor cores.
//
// As in decode attention the product is transposed: 16 slots by 8 window rows of one query head, so the maximum over
// the heads of a group is elementwise in registers and the mean over the rows a sum over columns. The first kernel
// leaves every chunk's maximum and sum of each row, the second makes the product again, now with the softmax's
// constants at hand: K is read twice, the logits [rows, slots] never exist.
#include "ops/cuda/compress_source.cuh"

namespace zipage::cuda {
namespace {

// ---- numbers ----
constexpr int kWarps = 4;
constexpr int kThreads = kWarps * kWarpSize;
constexpr int kSlotsPerWarp = 32;
constexpr int kChunk = kWarps * kSlotsPerWarp;
constexpr int kRows = 8;  // window rows a tensor-core tile holds

struct Args {
  Source source;
  const bf16* ring;  // of the query slot: layer stride ring_layer, rows [window, num_heads, head_dim]
  int64_t ring_layer;
  int num_heads, group, window, first_row_position;
  float scale_log2;
  float2* stats;  // [units, chunks, row tiles, group, kRows] maximum and sum, in log2
  float* scores;
};

// ---- kernels ----

template <bool kFp8, int kHeadDim>
__device__ void load_keys(const Args& a, int unit, int first, std::byte* keys) {
  constexpr int kRowBytes = kHeadDim * 2, kSourceChunks = kHeadDim * (kFp8 ? 1 : 2) / 16;
  for (int c = threadIdx.x; c < kChunk * kSourceChunks; c += kThreads) {
    const int row = c / kSourceChunks, column = c % kSourceChunks;
    const bool valid = first + row < a.source.num_slots;
    const std::byte* from = a.source.key_row(unit, valid ? first + row : first) + column * 16;
    if constexpr (kFp8) {
      const uint4 v = valid ? *reinterpret_cast<const uint4*>(from) : make_uint4(0, 0, 0, 0);
      const uint32_t words[4] = {v.x, v.y, v.z, v.w};
      uint32_t pairs[8];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 low = fp8x2_to_float2(words[i]), high = fp8x2_to_float2(words[i] >> 16);
        pairs[2 * i] = pack(low.x, low.y), pairs[2 * i + 1] = pack(high.x, high.y);
      }
      *reinterpret_cast<uint4*>(keys + swizzle<kRowBytes>(row, 2 * column)) =
          make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
      *reinterpret_cast<uint4*>(keys + swizzle<kRowBytes>(row, 2 * column + 1)) =
          make_uint4(pairs[4], pairs[5], pairs[6], pairs[7]);
    } else {
      copy_async16(shared_address(keys + swizzle<kRowBytes>(row, column)), from, valid);
    }
  }
}

// Rows [8 * row_tile, + 8) of every head of the group, [group, kRows, head_dim]; rows past the window are zero.
template <int kHeadDim>
__device__ void load_queries(const Args& a, int unit, int row_tile, std::byte* queries) {
  constexpr int kRowBytes = kHeadDim * 2, kChunks = kRowBytes / 16;
  const bf16* ring = a.ring + a.source.layer(unit) * a.ring_layer;
  for (int c = threadIdx.x; c < a.group * kRows * kChunks; c += kThreads) {
    const int line = c / kChunks, column = c % kChunks, head = line / kRows, row = row_tile * kRows + line % kRows;
    uint4 v = make_uint4(0, 0, 0, 0);
    if (row < a.window) {
      const int ring_row = (a.first_row_position + row) % a.window;
      const int64_t at = (int64_t{ring_row} * a.num_heads + a.source.head(unit) * a.group + head) * kHeadDim;
      v = reinterpret_cast<const uint4*>(ring + at)[column];
    }
    *reinterpret_cast<uint4*>(queries + swizzle<kRowBytes>(line, column)) = v;
  }
}

template <bool kFp8, int kHeadDim, bool kSecond>
__global__ void __launch_bounds__(kThreads) window_kernel(const __grid_constant__ Args a) {
  constexpr int kSteps = kHeadDim / 16, kRowBytes = kHeadDim * 2;
  extern __shared__ __align__(128) std::byte shared[];
  std::byte* keys = shared;                                                          // [kChunk, head_dim]
  std::byte* queries = keys + kChunk * kRowBytes;                                    // [group, kRows, head_dim]
  auto* columns = reinterpret_cast<float2*>(queries + a.group * kRows * kRowBytes);  // [kWarps or 1, group, kRows]
  const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize, g = lane / 4, t = lane % 4;
  const int num_chunks = gridDim.x, num_slots = a.source.num_slots;
  // The second kernel starts where the first ended: those keys may still lie in the cache.
  const int chunk = kSecond ? num_chunks - 1 - blockIdx.x : blockIdx.x;
  const int unit = kSecond ? gridDim.y - 1 - blockIdx.y : blockIdx.y;
  const int row_tiles = ceil_div(a.window, kRows), lines = a.group * kRows;
  float2* stats = a.stats + (int64_t{unit} * num_chunks + chunk) * row_tiles * lines;

  load_keys<kFp8, kHeadDim>(a, unit, chunk * kChunk, keys);
  copy_commit();
  copy_wait<0>();
  __syncthreads();
  uint32_t fragments[2][kSteps][4];
  int first_visible[2][2];  // the first window row that sees the lane's slots
#pragma unroll
  for (int m = 0; m < 2; ++m) {
    const int first = warp * kSlotsPerWarp + m * 16;
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      load_matrices(fragments[m][k],
                    shared_address(keys + swizzle<kRowBytes>(first + (lane & 15), 2 * k + (lane >> 4))));
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int slot = chunk * kChunk + first + g + 8 * i;
      first_visible[m][i] = slot >= num_slots             ? INT_MAX
                            : slot < num_slots - a.window ? 0
                                                          : a.source.position(unit, slot) - a.first_row_position;
    }
  }
  const float scale = a.scale_log2 * (kFp8 ? a.source.k_scale[unit] : 1.0F);

  float total[2][2] = {};
  for (int row_tile = 0; row_tile < row_tiles; ++row_tile) {
    __syncthreads();
    load_queries<kHeadDim>(a, unit, row_tile, queries);
    if constexpr (kSecond) {
      // columns[i] becomes (maximum, 1 / sum) of the softmax over all chunks; 0 for rows that see nothing.
      for (int i = threadIdx.x; i < lines; i += kThreads) {
        float maximum = -INFINITY, sum = 0.0F;
        for (int c = 0; c < num_chunks; ++c) {
          const float2 s = a.stats[((int64_t{unit} * num_chunks + c) * row_tiles + row_tile) * lines + i];
          if (s.x == -INFINITY) continue;
          const float next = fmaxf(maximum, s.x);
          sum = sum * exp2_fast(maximum - next) + s.y * exp2_fast(s.x - next);
          maximum = next;
        }
        const bool real = row_tile * kRows + i % kRows < a.window && sum > 0.0F;
        columns[i] = real ? make_float2(maximum, 1.0F / sum) : make_float2(0.0F, 0.0F);
      }
    }
    __syncthreads();

    float top[2][4] = {};
    for (int head = 0; head < a.group; ++head) {
      float s[2][4] = {};
#pragma unroll
      for (int k = 0; k < kSteps; k += 2) {
        uint32_t b[4];
        load_matrices(b, shared_address(queries + swizzle<kRowBytes>(head * kRows + lane % 8, 2 * k + lane / 8)));
#pragma unroll
        for (int m = 0; m < 2; ++m) {
          mma<Bf16Math>(s[m], fragments[m][k], b[0], b[1]);
          mma<Bf16Math>(s[m], fragments[m][k + 1], b[2], b[3]);
        }
      }
#pragma unroll
      for (int m = 0; m < 2; ++m) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          s[m][i] = row_tile * kRows + 2 * t + i % 2 >= first_visible[m][i / 2] ? s[m][i] * scale : -INFINITY;
        }
      }
      if constexpr (kSecond) {
        const float4 c = reinterpret_cast<const float4*>(columns)[(head * kRows) / 2 + t];
#pragma unroll
        for (int m = 0; m < 2; ++m) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const float p = i % 2 == 0 ? exp2_fast(s[m][i] - c.x) * c.y : exp2_fast(s[m][i] - c.z) * c.w;
            top[m][i] = fmaxf(top[m][i], p);
          }
        }
      } else {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          float maximum = fmaxf(fmaxf(s[0][i], s[0][i + 2]), fmaxf(s[1][i], s[1][i + 2]));
          maximum = fmaxf(maximum, __shfl_xor_sync(kFullMask, maximum, 4));
          maximum = fmaxf(maximum, __shfl_xor_sync(kFullMask, maximum, 8));
          maximum = fmaxf(maximum, __shfl_xor_sync(kFullMask, maximum, 16));
          const float base = maximum == -INFINITY ? 0.0F : maximum;
          float sum = exp2_fast(s[0][i] - base) + exp2_fast(s[0][i + 2] - base) + exp2_fast(s[1][i] - base) +
                      exp2_fast(s[1][i + 2] - base);
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
        total[m][0] += top[m][0] + top[m][1];
        total[m][1] += top[m][2] + top[m][3];
      }
    } else {
      __syncthreads();
      for (int i = threadIdx.x; i < lines; i += kThreads) {
        float maximum = -INFINITY, sum = 0.0F;
        for (int w = 0; w < kWarps; ++w) {
          const float2 s = columns[w * lines + i];
          if (s.x == -INFINITY) continue;
          const float next = fmaxf(maximum, s.x);
          sum = sum * exp2_fast(maximum - next) + s.y * exp2_fast(s.x - next);
          maximum = next;
        }
        stats[row_tile * lines + i] = make_float2(maximum, sum);
      }
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

// ---- launcher ----

template <bool kFp8, int kHeadDim>
void launch_window(const Launch& launch, const Args& a) {
  const dim3 grid(ceil_div(a.source.num_slots, kChunk), a.source.num_units());
  const int bytes =
      kChunk * kHeadDim * 2 + a.group * kRows * (kHeadDim * 2 + kWarps * static_cast<int>(sizeof(float2)));
  check(cudaFuncSetAttribute(window_kernel<kFp8, kHeadDim, false>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
        "window_scores");
  check(cudaFuncSetAttribute(window_kernel<kFp8, kHeadDim, true>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
        "window_scores");
  window_kernel<kFp8, kHeadDim, false><<<grid, kThreads, bytes, launch.stream>>>(a);
  window_kernel<kFp8, kHeadDim, true><<<grid, kThreads, bytes, launch.stream>>>(a);
}

template <bool kFp8>
void launch_head_dim(const Launch& launch, const Args& a) {
  switch (a.source.geometry.head_dim) {
    case 64:
      return launch_window<kFp8, 64>(launch, a);
    case 96:
      return launch_window<kFp8, 96>(launch, a);
    case 128:
      return launch_window<kFp8, 128>(launch, a);
    default:
      return launch_window<kFp8, 256>(launch, a);
  }
}

}  // namespace

size_t window_scores_scratch_bytes(const KvGeometry& g, int num_heads, int window, int num_slots) {
  return static_cast<size_t>(g.num_layers) * num_heads * ceil_div(num_slots, kChunk) * ceil_div(window, kRows) * kRows *
         sizeof(float2);
}

void window_scores(const Launch& launch, const WindowScoreParams& p) {
  const KvGeometry& g = p.source.kv.geometry;
  const int64_t slot_elements = int64_t{p.ring.window} * p.num_heads * g.head_dim;
  const Args a{.source = Source(p.source),
               .ring = static_cast<const bf16*>(p.ring.data) + p.query_slot * slot_elements,
               .ring_layer = p.ring.num_query_slots * slot_elements,
               .num_heads = p.num_heads,
               .group = p.num_heads / g.num_kv_heads,
               .window = p.ring.window,
               .first_row_position = p.source.logical_len() - p.ring.window,
               .scale_log2 = p.scale * kLog2e,
               .stats = reinterpret_cast<float2*>(p.scratch),
               .scores = p.scores};
  if (a.source.kv.is_fp8) {
    launch_head_dim<true>(launch, a);
  } else {
    launch_head_dim<false>(launch, a);
  }
}

}  // namespace zipage::cuda
