// Scope lightning over keys as they lie in the cache, on Hopper: the product of a chunk's keys with themselves by
// warpgroups, of which the tiles on and below the diagonal are enough, since a cosine is that of both of its slots.
//
// Keys lie in shared memory in bf16 as they are, so their products are exact and their sums fp32's. What the product
// leaves is a bit a pair: above the threshold, or nearly so. Column n's bits are its own row's up to the diagonal and,
// from there on, those that the rows of newer slots have for n. A column's newest bit is then made sure of in fp32;
// where it was not above the threshold, the next one is asked. So last(n) is what fp32 finds.
#include "ops/cuda/compress_key_panels.cuh"
#include "ops/cuda/compress_redundancy.h"

// Compiled for other machines, the kernel is empty and what it calls has no caller.
#pragma nv_diag_suppress 177

namespace zipage::cuda {
namespace {

// ---- numbers ----
constexpr int kThreads = kLightningChunk;
constexpr int kWarps = kThreads / kWarpSize;
constexpr int kWarpSlots = kLightningChunk / kWarps;
constexpr int kGroupThreads = 128;                   // of a warpgroup
constexpr int kTile = 64;                            // rows and columns of a product
constexpr int kPanel = kLightningChunk * kPanelRow;  // bytes
constexpr int kVector = 8;                           // elements of 16 bytes
constexpr int kBlocksAtOnce = 3;                     // on a multiprocessor: all of its shared memory
// More than a cosine of the product can err: products are exact, and an addition on tensor cores loses at most 2^-22 of
// |k[m]| |k[n]|; a head has up to 128, which is 3.1e-5. The rest is for what the bars and fp32's sums are rounded by.
constexpr float kDoubt = 5e-5F;
static_assert(kWarpSlots == kWarpSize && kThreads == 2 * kGroupThreads && kLightningChunk == 4 * kTile);

template <int kHeadDim>
struct Shape {
  static constexpr int kPanels = kHeadDim / 64;
  static constexpr int kKeyBytes = kPanels * kPanel;
};

// A float as a sum of three in bf16, exactly; so tensor cores multiply it as well as fp32 does.
constexpr int kParts = 3;

struct Shared {
  union {
    uint32_t hits[kWarps][kLightningChunk];  // of a row, bits of 32 columns a word
    struct {                                 // before the product
      bf16 inverses[kParts][kLightningChunk];
      bf16 u[kParts][128];
    } parts;
  };
  float inverses[kLightningChunk];  // 1 / |k|
  float redundancy[kLightningChunk];
  unsigned taken[kLightningChunk];  // what columns take off each row: up to 255 cosines, which fit
};

// ---- kernels ----

// Where chunk `chunk` of a slot's key lies.
__device__ __forceinline__ int key_chunk(int row, int chunk) {
  return panel_chunk<kLightningChunk>(row, chunk);
}

// The warp's slots into its rows.
template <int kHeadDim, bool kFp8>
__device__ __forceinline__ void load_keys(const Source& source, int unit, int begin, std::byte* keys) {
  const int own = static_cast<int>(threadIdx.x) / kWarpSize * kWarpSlots;
#pragma unroll
  for (int first = own; first < own + kWarpSlots; first += kSegment) {
    load_panel_segment<kHeadDim, kLightningChunk, kFp8>(source, unit, begin + first, keys, first);
  }
  copy_commit();
  copy_wait<0>();
  __syncwarp();
}

// v as parts, each what the ones before leave of it.
template <int kCount>
__device__ __forceinline__ void store_parts(bf16 (&parts)[kParts][kCount], int at, float v) {
#pragma unroll
  for (int part = 0; part < kParts; ++part) {
    const bf16 rounded = __float2bfloat16_rn(v);
    parts[part][at] = rounded;
    v -= __bfloat162float(rounded);
  }
}
// Two neighbours of part g, of which there are three.
template <int kCount>
__device__ __forceinline__ uint32_t load_parts(const bf16 (&parts)[kParts][kCount], int g, int at) {
  return g < kParts ? *reinterpret_cast<const uint32_t*>(&parts[g < kParts ? g : 0][at]) : 0U;
}

// Rows of a tile of 16 from `row` on and elements [16 k, + 16), as a product's left operand.
__device__ __forceinline__ uint32_t tile_address(const std::byte* keys, int row, int k) {
  const int lane = threadIdx.x % kWarpSize;
  return shared_address(keys + row * kPanelRow + key_chunk(lane & 15, 2 * k + (lane >> 4)));
}

// 1 / |k| of the warp's slots: |k|^2 stands on the diagonal of a tile's product with itself.
template <int kHeadDim>
__device__ __forceinline__ void measure_keys(const std::byte* keys, Shared& shared) {
  const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize, g = lane / 4, t = lane % 4;
#pragma unroll
  for (int row = 0; row < kWarpSlots; row += 16) {
    float low[4] = {}, high[4] = {};  // columns [0, 8) and [8, 16)
#pragma unroll
    for (int k = 0; k < kHeadDim / 16; ++k) {
      uint32_t x[4];
      load_matrices(x, tile_address(keys, warp * kWarpSlots + row, k));
      mma<Bf16Math>(low, x, x[0], x[2]);
      mma<Bf16Math>(high, x, x[1], x[3]);
    }
    if (g / 2 == t) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float square = h == 0 ? (g % 2 == 0 ? low[0] : low[1]) : (g % 2 == 0 ? high[2] : high[3]);
        const float inverse = square > 0.0F ? rsqrtf(square) : 0.0F;
        const int slot = warp * kWarpSlots + row + 8 * h + g;
        shared.inverses[slot] = inverse;
        store_parts(shared.parts.inverses, slot, inverse);
      }
    }
  }
}

// u, the sum of k^, 16 elements a warp.
template <int kHeadDim>
__device__ __forceinline__ void add_keys(const std::byte* keys, Shared& shared) {
  const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize, g = lane / 4, t = lane % 4;
  if (warp >= kHeadDim / 16) return;
  const uint32_t address = tile_address(keys, 0, warp);
  float d[2][4] = {};  // row g is of part g of 1 / |k|
#pragma unroll
  for (int row = 0; row < kLightningChunk; row += 16) {
    const uint32_t a[4] = {load_parts(shared.parts.inverses, g, row + 2 * t), 0,
                           load_parts(shared.parts.inverses, g, row + 8 + 2 * t), 0};
    uint32_t b[4];
    load_matrices_transposed(b, address + row * kPanelRow);
    mma<Bf16Math>(d[0], a, b[0], b[1]);
    mma<Bf16Math>(d[1], a, b[2], b[3]);
  }
#pragma unroll
  for (int n = 0; n < 2; ++n) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      float v = d[n][e];
      v += __shfl_down_sync(kFullMask, d[n][e], 4) + __shfl_down_sync(kFullMask, d[n][e], 8);
      if (g == 0) store_parts(shared.parts.u, warp * 16 + n * 8 + 2 * t + e, v);
    }
  }
}

// R[m] = k^[m] . u - 1 of the warp's slots.
template <int kHeadDim>
__device__ __forceinline__ void meet_sum(const std::byte* keys, Shared& shared) {
  const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize, g = lane / 4, t = lane % 4;
  float d[kWarpSlots / 16][4] = {};  // column g is of part g of u
#pragma unroll
  for (int k = 0; k < kHeadDim / 16; ++k) {
    const uint32_t low = load_parts(shared.parts.u, g, k * 16 + 2 * t);
    const uint32_t high = load_parts(shared.parts.u, g, k * 16 + 8 + 2 * t);
#pragma unroll
    for (int m = 0; m < kWarpSlots / 16; ++m) {
      uint32_t x[4];
      load_matrices(x, tile_address(keys, warp * kWarpSlots + m * 16, k));
      mma<Bf16Math>(d[m], x, low, high);
    }
  }
#pragma unroll
  for (int m = 0; m < kWarpSlots / 16; ++m) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float dot = d[m][2 * h] + d[m][2 * h + 1] + __shfl_down_sync(kFullMask, d[m][2 * h], 1);
      const int slot = warp * kWarpSlots + m * 16 + 8 * h + g;
      const float inverse = shared.inverses[slot];
      if (t == 0) shared.redundancy[slot] = dot * inverse - (inverse > 0.0F ? 1.0F : 0.0F);
    }
  }
}

// Bits of rows [64 i, + 64) and columns [64 j, + 64), by a warpgroup.
template <int kHeadDim>
__device__ __forceinline__ void multiply(uint32_t keys, int i, int j, float bar, Shared& shared) {
  const int lane = threadIdx.x % kWarpSize, g = lane / 4, t = lane % 4;
  float d[kTile / 2];
  pin(d);
  product_begin();
  const uint64_t rows = operand(keys + i * kTile * kPanelRow, 16, 1024);
  const uint64_t columns = operand(keys + j * kTile * kPanelRow, 16, 1024);
#pragma unroll
  for (int k = 0; k < kHeadDim / 16; ++k) {
    const int inside = (k / 4 * kPanel + k % 4 * 32) / 16;  // in units of an operand's address
    product_ss(d, rows + inside, columns + inside, k > 0);
  }
  product_commit();
  const int row = i * kTile + static_cast<int>(threadIdx.x) % kGroupThreads / kWarpSize * 16 + g;
  float bars[2];  // of rows row and row + 8: what a product with a unit vector must exceed
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const float inverse = shared.inverses[row + 8 * h];
    bars[h] = inverse > 0.0F ? __fdividef(bar, inverse) : INFINITY;
  }
  product_wait<0>();
  pin(d);
  // d[4 n + 2 h + e] is row 8 h and column 8 n + 2 t + e.
  uint32_t words[2][2] = {};  // of row h, columns [32 w, + 32)
  const auto* inverses = reinterpret_cast<const float2*>(shared.inverses + j * kTile) + t;
#pragma unroll
  for (int n = 0; n < kTile / 8; ++n) {
    const float2 inverse = inverses[4 * n];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if (d[4 * n + 2 * h] * inverse.x > bars[h]) words[h][n / 4] |= 1U << (n % 4 * 8);
      if (d[4 * n + 2 * h + 1] * inverse.y > bars[h]) words[h][n / 4] |= 2U << (n % 4 * 8);
    }
  }
  uint32_t word[1];
  share_bits(words, word);
  shared.hits[2 * j + t % 2][row + 8 * (t / 2)] = word[0];
}

// last(n) of the warp's columns, which take c[last(n), n] off their rows.
template <int kHeadDim>
__device__ __forceinline__ void settle(const std::byte* keys, float threshold, Shared& shared) {
  using S = Shape<kHeadDim>;
  const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize, column = warp * kWarpSlots + lane;
  uint32_t rows[kWarps];  // that may be above the threshold
#pragma unroll
  for (int w = 0; w < kWarps; ++w) {
    const bool newer = w > warp;
    rows[w] = newer ? shared.hits[warp][w * kWarpSlots + lane] : shared.hits[w][column];
    if (newer && __any_sync(kFullMask, rows[w] != 0)) rows[w] = transpose_bits(rows[w]);
    if (w == warp) rows[w] &= ~(1U << lane);
  }
  bool open = true;
  while (true) {
    int last = -1;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      if (rows[w] != 0) last = w * kWarpSlots + 31 - __clz(static_cast<int>(rows[w]));
    }
    open = open && last >= 0;
    const unsigned asking = __ballot_sync(kFullMask, open);
    if (asking == 0) break;
    // Eight lanes a column, 16 bytes of each panel a lane.
    constexpr int kColumns = kWarpSize / 8;
    float value = 0.0F;
#pragma unroll 1
    for (int first = 0; first < kWarpSlots; first += kColumns) {
      if ((asking >> first & ((1U << kColumns) - 1)) == 0) continue;
      const int local = first + lane / 8, row = max(__shfl_sync(kFullMask, last, local), 0);
      float dot = 0.0F;
#pragma unroll
      for (int panel = 0; panel < S::kPanels; ++panel) {
        float x[kVector], y[kVector];
        unpack8(*reinterpret_cast<const uint4*>(keys + key_chunk(row, panel * 8 + lane % 8)), x);
        unpack8(*reinterpret_cast<const uint4*>(keys + key_chunk(warp * kWarpSlots + local, panel * 8 + lane % 8)), y);
#pragma unroll
        for (int e = 0; e < kVector; ++e) dot = fmaf(x[e], y[e], dot);
      }
#pragma unroll
      for (int offset = 4; offset > 0; offset >>= 1) dot += __shfl_xor_sync(kFullMask, dot, offset);
      dot = __shfl_sync(kFullMask, dot, lane % kColumns * 8);
      if (lane / kColumns * kColumns == first) value = dot;
    }
    if (!open) continue;
    value *= shared.inverses[last] * shared.inverses[column];
    if (value > threshold) {
      atomicAdd(&shared.taken[last], __float2uint_rn(value * kFixedOne));
      open = false;
    } else {
#pragma unroll
      for (int w = 0; w < kWarps; ++w) rows[w] &= last / kWarpSlots == w ? ~(1U << last % kWarpSlots) : ~0U;
    }
  }
}

template <int kHeadDim>
__global__ void __launch_bounds__(kThreads, kBlocksAtOnce)
    lightning_hopper_kernel(const __grid_constant__ LightningRedundancy a) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  wait_for_previous();
  extern __shared__ __align__(1024) std::byte keys[];  // [panels, kLightningChunk, 64] bf16
  auto& shared = *reinterpret_cast<Shared*>(keys + Shape<kHeadDim>::kKeyBytes);
  const int thread = threadIdx.x, unit = blockIdx.y, begin = blockIdx.x * kLightningChunk;
  if (a.source.kv.is_fp8) {
    load_keys<kHeadDim, true>(a.source, unit, begin, keys);
  } else {
    load_keys<kHeadDim, false>(a.source, unit, begin, keys);
  }
  shared.taken[thread] = 0;
  measure_keys<kHeadDim>(keys, shared);
  fence_async_proxy();
  __syncthreads();
  add_keys<kHeadDim>(keys, shared);
  __syncthreads();
  meet_sum<kHeadDim>(keys, shared);
  __syncthreads();  // bits take the parts' place
  // On and below the diagonal: the first warpgroup has rows 3 and 0 of the tiles, the second rows 2 and 1, five tiles
  // each.
  const float bar = a.threshold - kDoubt;
  const int group = __shfl_sync(kFullMask, thread / kGroupThreads, 0);  // in a register that the warp shares
#pragma unroll 1
  for (int n = 0; n < 5; ++n) {
    const int tall = 3 - group;
    const bool first = n <= tall;
    multiply<kHeadDim>(shared_address(keys), first ? tall : group, first ? n : n - tall - 1, bar, shared);
  }
  __syncthreads();
  settle<kHeadDim>(keys, a.threshold, shared);
  __syncthreads();
  if (begin + thread < a.source.num_slots) {
    a.redundancy[int64_t{unit} * a.source.num_slots + begin + thread] =
        shared.redundancy[thread] - static_cast<float>(shared.taken[thread]) / kFixedOne;
  }
#endif
}

// ---- launcher ----

template <int kHeadDim>
void launch_lightning(const Launch& launch, const LightningRedundancy& a) {
  constexpr int kBytes = Shape<kHeadDim>::kKeyBytes + static_cast<int>(sizeof(Shared));
  const auto kernel = lightning_hopper_kernel<kHeadDim>;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes), "redundancy");
  run(launch, kernel, dim3(ceil_div(a.source.num_slots, kLightningChunk), a.source.num_units()), kThreads, kBytes, a);
}

}  // namespace

bool serves_lightning_hopper(const Launch& launch, const LightningRedundancy& a) {
  const int head_dim = a.source.geometry.head_dim;
  return launch.compute_capability == 90 && a.cos_sin == nullptr && (head_dim == 64 || head_dim == 128);
}

void lightning_redundancy_hopper(const Launch& launch, const LightningRedundancy& a) {
  dispatch<64, 128>(a.source.geometry.head_dim, [&]<int kHeadDim>() { launch_lightning<kHeadDim>(launch, a); });
}

}  // namespace zipage::cuda
