// Stage 4: how much of a slot's key others say as well, in four kernels.
//
// 1. prepare: k^[t] in fp32 (RoPE undone for content keys); 1/|k|, sums over 64 slots, k^ in half precision for
// `search`.
//
// 2. sum: R[m] = k^[m] . u in fp32, u being the sum over the slot's chunk.
//
// 3. search: last(n) for tiles of 256 columns, from the newest row down until every column has its own. c[last(n), n]
// is summed per row in fixed point, so the order of the blocks is no matter. Cosines are compared in half precision on
// tensor cores; one that lies too near the threshold to tell is computed in fp32 by the whole warp, so last(n) is what
// fp32 finds.
//
// 4. normalise: softmax over all slots.
#include "ops/cuda/compress_keys.cuh"

namespace zipage::cuda {
namespace {

// ---- numbers ----
constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarpSize;
constexpr int kSlots = 64;     // of a block of `prepare` and `sum`
constexpr int kColumns = 256;  // of a block of `search`
constexpr int kColumnsPerWarp = kColumns / kWarps;
constexpr int kRows = 64;  // rows that `search` stages at a time
constexpr int kLightningChunk = 256;
constexpr float kDoubt = 2e-4F;  // more than the error of a half-precision cosine of unit vectors
constexpr float kFixedOne = 16777216.0F;
static_assert(kLightningChunk == kColumns && kLightningChunk % kSlots == 0 && kRows == kSlots);

struct Args : KeySource {
  int chunk;       // slots; at least num_slots for one chunk
  bool skip_self;  // all scopes but mean
  float threshold, temperature;
  float* redundancy = nullptr;  // R, then R' [units, num_slots]
  // Scratch. `search` works on units [first_unit, first_unit + gridDim.y) at a time.
  float* inverse = nullptr;             // 1 / |k| [units, num_slots]
  float* sums = nullptr;                // [units, ceil(num_slots / kSlots), head_dim]
  unsigned long long* taken = nullptr;  // what `search` takes off, fixed point [units, num_slots]
  __half* unit_keys = nullptr;          // [units at a time, padded slots, head_dim]
  int padded_slots;                     // a multiple of kRows
  int first_unit;
};

// ---- kernels ----

// A block takes kSlots slots of one layer, a warp one of its KV heads: slots whose positions the heads share find their
// cosines and sines in the nearest cache.
template <int kHeadDim, bool kWide>
__global__ void __launch_bounds__(kThreads, 2) prepare_kernel(const __grid_constant__ Args a) {
  wait_for_previous();
  using L = Lanes<kHeadDim, kWide>;
  const int lane = threadIdx.x % kWarpSize, c = lane % L::kCount;
  const int num_slots = a.source.num_slots, heads = a.source.kv.num_kv_heads;
  for (int head = threadIdx.x / kWarpSize; head < heads; head += blockDim.x / kWarpSize) {
    const int local = blockIdx.y * heads + head, unit = a.first_unit + local;
    float sum[L::kVectors][kVector] = {};
    for_each_key<kHeadDim, kWide, kSlots>(a, unit, blockIdx.x * kSlots, [&](int t, float(&x)[L::kVectors][kVector]) {
      float square = 0.0F;
#pragma unroll
      for (int j = 0; j < L::kVectors; ++j) {
#pragma unroll
        for (int e = 0; e < kVector; ++e) square = fmaf(x[j][e], x[j][e], square);
      }
      square = reduce_key<L>(square);
      const float inverse = square > 0.0F ? 1.0F / sqrtf(square) : 0.0F;
      if (c == 0 && t < num_slots) a.inverse[int64_t{unit} * num_slots + t] = inverse;
#pragma unroll
      for (int j = 0; j < L::kVectors; ++j) {
#pragma unroll
        for (int e = 0; e < kVector; ++e) sum[j][e] += x[j][e] *= inverse;
        if (a.unit_keys != nullptr && c < L::kChunks) {
          auto* row = reinterpret_cast<uint4*>(a.unit_keys + (int64_t{local} * a.padded_slots + t) * kHeadDim);
          row[c + j * L::kCount] = make_uint4(pack_half(x[j][0], x[j][1]), pack_half(x[j][2], x[j][3]),
                                              pack_half(x[j][4], x[j][5]), pack_half(x[j][6], x[j][7]));
        }
      }
    });
    float* out = a.sums + (int64_t{unit} * gridDim.x + blockIdx.x) * kHeadDim;
#pragma unroll
    for (int j = 0; j < L::kVectors; ++j) {
#pragma unroll
      for (int offset = L::kCount; offset < kWarpSize; offset <<= 1) {
#pragma unroll
        for (int e = 0; e < kVector; ++e) sum[j][e] += __shfl_xor_sync(kFullMask, sum[j][e], offset);
      }
      if (lane < L::kCount && c < L::kChunks) {
        auto* to = reinterpret_cast<float4*>(out) + 2 * (c + j * L::kCount);
        to[0] = make_float4(sum[j][0], sum[j][1], sum[j][2], sum[j][3]);
        to[1] = make_float4(sum[j][4], sum[j][5], sum[j][6], sum[j][7]);
      }
    }
  }
}

// sums[b] becomes the sum over the chunk that slots of block b belong to.
__global__ void chunk_sums_kernel(const __grid_constant__ Args a, int num_blocks, int head_dim) {
  wait_for_previous();
  float* sums = a.sums + int64_t{a.first_unit + static_cast<int>(blockIdx.x)} * num_blocks * head_dim;
  const int blocks_per_chunk = a.chunk / kSlots;
  for (int d = threadIdx.x; d < head_dim; d += blockDim.x) {
    for (int first = 0; first < num_blocks; first += blocks_per_chunk) {
      const int last = min(first + blocks_per_chunk, num_blocks);
      float v = 0.0F;
#pragma unroll 8
      for (int b = first; b < last; ++b) v += sums[int64_t{b} * head_dim + d];
      // One copy a chunk is enough: its first block's.
      sums[int64_t{first} * head_dim + d] = v;
    }
  }
}

template <int kHeadDim, bool kWide>
__global__ void __launch_bounds__(kThreads, 2) sum_kernel(const __grid_constant__ Args a) {
  wait_for_previous();
  using L = Lanes<kHeadDim, kWide>;
  const int c = threadIdx.x % L::kCount;
  const int num_slots = a.source.num_slots, heads = a.source.kv.num_kv_heads;
  const int first_of_chunk = static_cast<int>(blockIdx.x) / (a.chunk / kSlots) * (a.chunk / kSlots);
  for (int head = threadIdx.x / kWarpSize; head < heads; head += blockDim.x / kWarpSize) {
    const int unit = a.first_unit + blockIdx.y * heads + head;
    const auto* from =
        reinterpret_cast<const float4*>(a.sums + (int64_t{unit} * gridDim.x + first_of_chunk) * kHeadDim);
    float u[L::kVectors][kVector] = {};
#pragma unroll
    for (int j = 0; j < L::kVectors; ++j) {
      if (c >= L::kChunks) break;
      const float4 low = from[2 * (c + j * L::kCount)], high = from[2 * (c + j * L::kCount) + 1];
      u[j][0] = low.x, u[j][1] = low.y, u[j][2] = low.z, u[j][3] = low.w;
      u[j][4] = high.x, u[j][5] = high.y, u[j][6] = high.z, u[j][7] = high.w;
    }
    for_each_key<kHeadDim, kWide, kSlots>(a, unit, blockIdx.x * kSlots, [&](int t, float(&x)[L::kVectors][kVector]) {
      float dot = 0.0F;
#pragma unroll
      for (int j = 0; j < L::kVectors; ++j) {
#pragma unroll
        for (int e = 0; e < kVector; ++e) dot = fmaf(x[j][e], u[j][e], dot);
      }
      dot = reduce_key<L>(dot);
      if (c == 0 && t < num_slots) {
        const float inverse = a.inverse[int64_t{unit} * num_slots + t];
        a.redundancy[int64_t{unit} * num_slots + t] = dot * inverse - (a.skip_self && inverse > 0.0F ? 1.0F : 0.0F);
      }
    });
  }
}

struct Hit {
  int row;
  float value;
};

// c[m, n] in fp32, by the whole warp.
template <int kHeadDim>
__device__ __noinline__ float exact_cosine(const Args& a, int unit, int m, int n) {
  using L = Lanes<kHeadDim, false>;
  float x[1][kVector], y[1][kVector];
  const Place at_m = place(a, unit, m), at_n = place(a, unit, n);
  undo_rope<L, false>(a, fetch_key<L>(a, at_m), at_m.position, x);
  undo_rope<L, false>(a, fetch_key<L>(a, at_n), at_n.position, y);
  float dot = 0.0F;
#pragma unroll
  for (int e = 0; e < kVector; ++e) dot = fmaf(x[0][e], y[0][e], dot);
  const float* inverse = a.inverse + int64_t{unit} * a.source.num_slots;
  return reduce_key<L>(dot) * inverse[m] * inverse[n];
}

template <int kHeadDim>
__global__ void __launch_bounds__(kThreads) search_kernel(const __grid_constant__ Args a) {
  wait_for_previous();
  constexpr int kSteps = kHeadDim / 16, kRowBytes = kHeadDim * 2, kChunks = kRowBytes / 16;
  constexpr int kTiles = kColumnsPerWarp / 8, kStageBytes = kRows * kRowBytes;
  constexpr int kStages = kColumns / kRows;
  static_assert(kColumns == kThreads);
  __shared__ Hit found[kColumns];                       // last(n) and c[last(n), n]
  extern __shared__ __align__(128) std::byte stages[];  // [kStages, kRows, head_dim]; before that the columns
  const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize, g = lane / 4, t = lane % 4;
  const int unit = a.first_unit + blockIdx.y, num_slots = a.source.num_slots;
  const __half* keys = a.unit_keys + int64_t{blockIdx.y} * a.padded_slots * kHeadDim;
  unsigned long long* taken = a.taken + int64_t{unit} * num_slots;
  const int first_column = blockIdx.x * kColumns + warp * kColumnsPerWarp;
  const int low = blockIdx.x * kColumns / a.chunk * a.chunk;
  const int high = min(low + a.chunk, num_slots);

  const auto stage_rows = [&](int tile, int stage) {
    const auto* from = reinterpret_cast<const std::byte*>(keys + int64_t{tile} * kRows * kHeadDim);
    for (int i = threadIdx.x; i < kRows * kChunks; i += kThreads) {
      copy_async16(shared_address(stages + stage * kStageBytes + swizzle<kRowBytes>(i / kChunks, i % kChunks)),
                   from + i * 16, true);
    }
  };
  uint32_t columns[kTiles][kSteps][2];  // B fragments
  unsigned open = 0;                    // bit 2 * tile + parity: that column of the lane still looks
  found[threadIdx.x] = {-1, 0.0F};
  const int first_tile = blockIdx.x * kStages, num_tiles = a.padded_slots / kRows;
  for (int i = 0; i < kStages; ++i) stage_rows(min(first_tile + i, num_tiles - 1), i);
  copy_commit();
  copy_wait<0>();
  __syncthreads();
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
#pragma unroll
    for (int k = 0; k < kSteps; k += 2) {
      uint32_t b[4];
      load_matrices(
          b, shared_address(stages + swizzle<kRowBytes>(warp * kColumnsPerWarp + n * 8 + lane % 8, 2 * k + lane / 8)));
      columns[n][k][0] = b[0], columns[n][k][1] = b[1], columns[n][k + 1][0] = b[2], columns[n][k + 1][1] = b[3];
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) open |= first_column + n * 8 + 2 * t + i < num_slots ? 1U << (2 * n + i) : 0U;
  }
  __syncthreads();

  // A tile of 16 rows from m0 on has been multiplied: c[n][i] is row g (i < 2) or g + 8 and column 2t + i % 2 of tile
  // n. A byte of `best` is a column's newest row that may hit, plus one; the eight lanes that share a column agree on
  // it. The lane whose row it is notes a sure hit; doubtful ones are left to the whole warp.
  const auto take_hits = [&](int m0, const float(&c)[kTiles][4]) {
    const float bar = a.threshold - kDoubt;
    const bool plain = m0 + 16 <= num_slots && (m0 + 16 <= first_column || m0 >= first_column + kColumnsPerWarp);
    unsigned best[kTiles / 2] = {};
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        bool low = c[n][i] > bar, high = c[n][i + 2] > bar;
        if (!plain) {
          const int column = first_column + n * 8 + 2 * t + i;
          low = low && m0 + g != column && m0 + g < num_slots;
          high = high && m0 + g + 8 != column && m0 + g + 8 < num_slots;
        }
        const unsigned row = high ? g + 9 : low ? g + 1 : 0;
        if ((open >> (2 * n + i) & 1U) != 0) best[n / 2] |= row << (8 * (2 * (n % 2) + i));
      }
    }
#pragma unroll
    for (int w = 0; w < kTiles / 2; ++w) {
      best[w] = __vmaxu4(best[w], __shfl_xor_sync(kFullMask, best[w], 4));
      best[w] = __vmaxu4(best[w], __shfl_xor_sync(kFullMask, best[w], 8));
      best[w] = __vmaxu4(best[w], __shfl_xor_sync(kFullMask, best[w], 16));
    }
    unsigned closed = 0, doubts = 0;
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const unsigned row = best[n / 2] >> (8 * (2 * (n % 2) + i)) & 0xffU;
        closed |= row != 0 ? 1U << (2 * n + i) : 0U;
        if (row == static_cast<unsigned>(g) + 1 || row == static_cast<unsigned>(g) + 9) {
          const float value = row > 8 ? c[n][i + 2] : c[n][i];
          if (value > a.threshold + kDoubt) {
            found[warp * kColumnsPerWarp + n * 8 + 2 * t + i] = {m0 + static_cast<int>(row) - 1, value};
          } else {
            doubts |= 1U << (2 * n + i);
          }
        }
      }
    }
    doubts |= __shfl_xor_sync(kFullMask, doubts, 4);
    doubts |= __shfl_xor_sync(kFullMask, doubts, 8);
    doubts |= __shfl_xor_sync(kFullMask, doubts, 16);
    open &= ~(closed & ~doubts);
    // Doubtful columns one by one, their rows of this tile from the newest down.
    unsigned asking = __ballot_sync(kFullMask, g == 0 && doubts != 0);
    while (asking != 0) {
      const int speaker = __ffs(asking) - 1;
      asking &= asking - 1;
      unsigned in_doubt = __shfl_sync(kFullMask, doubts, speaker);
      while (in_doubt != 0) {
        const int bit = __ffs(in_doubt) - 1;
        in_doubt &= in_doubt - 1;
        const int local = warp * kColumnsPerWarp + bit / 2 * 8 + 2 * speaker + bit % 2;
        const int column = blockIdx.x * kColumns + local;
        bool hit = false;
        for (int row = 15; row >= 0 && !hit; --row) {
          const int m = m0 + row;
          if (m >= num_slots || m == column) continue;
          float value = 0.0F;
#pragma unroll
          for (int n = 0; n < kTiles; ++n) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
              if (2 * n + i % 2 == bit && i / 2 == row / 8) value = c[n][i];
            }
          }
          value = __shfl_sync(kFullMask, value, row % 8 * 4 + speaker);
          if (!(value > bar)) continue;
          if (value <= a.threshold + kDoubt) value = exact_cosine<kHeadDim>(a, unit, m, column);
          if (!(value > a.threshold)) continue;
          hit = true;
          if (lane == 0) found[local] = {m, value};
        }
        if (hit && t == speaker) open &= ~(1U << bit);
      }
    }
  };

  // Row tiles from the newest down, kStages - 1 of them on their way.
  const int newest = ceil_div(high, kRows) - 1, oldest = low / kRows;
  for (int i = 0; i < kStages - 1; ++i) {
    if (newest - i >= oldest) stage_rows(newest - i, i);
    copy_commit();
  }
  for (int tile = newest; tile >= oldest; --tile) {
    copy_wait<kStages - 2>();
    if (!__syncthreads_or(open != 0)) break;
    if (tile - (kStages - 1) >= oldest) stage_rows(tile - (kStages - 1), (newest - tile + kStages - 1) % kStages);
    copy_commit();
    const std::byte* stage = stages + (newest - tile) % kStages * kStageBytes;
    for (int m = kRows / 16 - 1; m >= 0 && __any_sync(kFullMask, open != 0); --m) {
      float c[kTiles][4] = {};
#pragma unroll
      for (int k = 0; k < kSteps; ++k) {
        uint32_t row[4];
        load_matrices(row, shared_address(stage + swizzle<kRowBytes>(m * 16 + (lane & 15), 2 * k + (lane >> 4))));
#pragma unroll
        for (int n = 0; n < kTiles; ++n) mma<HalfMath>(c[n], row, columns[n][k][0], columns[n][k][1]);
      }
      bool hit = false;
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          hit |= (open >> (2 * n + i) & 1U) != 0 && fmaxf(c[n][i], c[n][i + 2]) > a.threshold - kDoubt;
        }
      }
      if (__any_sync(kFullMask, hit)) take_hits(tile * kRows + m * 16, c);
    }
  }
  copy_wait<0>();
  __syncthreads();
  const Hit hit = found[threadIdx.x];
  if (hit.row >= 0) atomicAdd(&taken[hit.row], static_cast<unsigned long long>(hit.value * kFixedOne + 0.5F));
}

__global__ void __launch_bounds__(kThreads) normalise_kernel(const __grid_constant__ Args a) {
  wait_for_previous();
  __shared__ float shared[kWarpSize];
  const int num_slots = a.source.num_slots;
  float* r = a.redundancy + int64_t{blockIdx.x} * num_slots;
  const unsigned long long* taken = a.taken != nullptr ? a.taken + int64_t{blockIdx.x} * num_slots : nullptr;
  const auto value = [&](int t) {
    const int start = t / a.chunk * a.chunk, length = min(a.chunk, num_slots - start);
    const float off = taken != nullptr ? static_cast<float>(taken[t]) / kFixedOne : 0.0F;
    return (r[t] - off) / (a.temperature * static_cast<float>(length));
  };
  float maximum = -INFINITY;
  for (int t = threadIdx.x; t < num_slots; t += kThreads) maximum = fmaxf(maximum, value(t));
  maximum = block_reduce<Max>(maximum, shared);
  float sum = 0.0F;
  for (int t = threadIdx.x; t < num_slots; t += kThreads) sum += expf(value(t) - maximum);
  const float inverse = 1.0F / block_reduce<Sum>(sum, shared);
  for (int t = threadIdx.x; t < num_slots; t += kThreads) r[t] = expf(value(t) - maximum) * inverse;
}

// ---- launcher ----

template <int kHeadDim, bool kWide>
void launch_sums(const Launch& launch, const Args& a, int layers, int slot_blocks) {
  const int heads = a.source.kv.num_kv_heads, threads = (heads < kWarps ? heads : kWarps) * kWarpSize;
  run(launch, prepare_kernel<kHeadDim, kWide>, dim3(slot_blocks, layers), threads, 0, a);
  run(launch, chunk_sums_kernel, layers * heads, kHeadDim, 0, a, slot_blocks, kHeadDim);
  run(launch, sum_kernel<kHeadDim, kWide>, dim3(slot_blocks, layers), threads, 0, a);
}

template <int kHeadDim>
void launch_layers(const Launch& launch, const Args& a, int layers, int slot_blocks) {
  const bool wide = kHeadDim != 96 && (a.cos_sin == nullptr || a.rotary_dim == kHeadDim);
  if (wide) {
    launch_sums<kHeadDim, kHeadDim != 96>(launch, a, layers, slot_blocks);
  } else {
    launch_sums<kHeadDim, false>(launch, a, layers, slot_blocks);
  }
  if (a.unit_keys == nullptr) return;
  constexpr int kBytes = kColumns * kHeadDim * 2;
  check(cudaFuncSetAttribute(search_kernel<kHeadDim>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes),
        "redundancy");
  const dim3 grid(ceil_div(a.source.num_slots, kColumns), layers * a.source.kv.num_kv_heads);
  run(launch, search_kernel<kHeadDim>, grid, kThreads, kBytes, a);
}

// Half-precision keys of this many bytes at most at a time, but at least one layer's.
constexpr size_t kUnitKeyBytes = size_t{192} << 20;

struct Plan {
  size_t inverse, sums, taken, unit_keys;  // bytes
  int padded_slots, layers_at_a_time;
  size_t total() const { return inverse + sums + taken + unit_keys; }
};

size_t padded(size_t bytes) {
  return (bytes + 255) / 256 * 256;
}

Plan plan(const KvGeometry& g, int num_slots) {
  const size_t units = static_cast<size_t>(g.num_layers) * g.num_kv_heads;
  Plan p{};
  p.padded_slots = ceil_div(num_slots, kRows) * kRows;
  p.inverse = padded(units * num_slots * sizeof(float));
  p.sums = padded(units * ceil_div(num_slots, kSlots) * g.head_dim * sizeof(float));
  p.taken = padded(units * num_slots * sizeof(unsigned long long));
  const size_t layer = static_cast<size_t>(p.padded_slots) * g.num_kv_heads * g.head_dim * sizeof(__half);
  const size_t layers = static_cast<size_t>(g.num_layers), fit = kUnitKeyBytes / layer;
  p.layers_at_a_time = static_cast<int>(fit < 1 ? 1 : fit > layers ? layers : fit);
  const size_t bound = layers * layer < kUnitKeyBytes ? layers * layer : kUnitKeyBytes;  // grows with num_slots
  p.unit_keys = padded(layer > bound ? layer : bound);
  return p;
}

}  // namespace

size_t redundancy_scratch_bytes(const KvGeometry& g, int num_slots) {
  return plan(g, num_slots).total();
}

void redundancy(const Launch& launch, const RedundancyParams& p) {
  const KvGeometry& g = p.source.kv.geometry;
  const int num_slots = p.source.num_slots;
  const Plan scratch = plan(g, num_slots);
  const bool search = p.scope != RedundancyScope::kMean;
  const int slot_blocks = ceil_div(num_slots, kSlots);
  Args a{{Source(p.source), p.keys == RedundancyKeys::kContent ? p.cos_sin : nullptr, p.rotary_dim}};
  a.chunk = p.scope == RedundancyScope::kLightning ? kLightningChunk : slot_blocks * kSlots;
  a.skip_self = search;
  a.threshold = p.threshold;
  a.temperature = p.temperature;
  a.redundancy = p.redundancy;
  a.padded_slots = scratch.padded_slots;
  std::byte* next = p.scratch;
  a.inverse = reinterpret_cast<float*>(next), next += scratch.inverse;
  a.sums = reinterpret_cast<float*>(next), next += scratch.sums;
  if (search) {
    a.taken = reinterpret_cast<unsigned long long*>(next);
    a.unit_keys = reinterpret_cast<__half*>(next + scratch.taken);
    check(cudaMemsetAsync(a.taken, 0, scratch.taken, launch.stream), "redundancy");
  }
  const int layers_at_a_time = search ? scratch.layers_at_a_time : g.num_layers;
  for (int layer = 0; layer < g.num_layers; layer += layers_at_a_time) {
    a.first_unit = layer * g.num_kv_heads;
    const int layers = g.num_layers - layer < layers_at_a_time ? g.num_layers - layer : layers_at_a_time;
    switch (g.head_dim) {
      case 64:
        launch_layers<64>(launch, a, layers, slot_blocks);
        break;
      case 96:
        launch_layers<96>(launch, a, layers, slot_blocks);
        break;
      case 128:
        launch_layers<128>(launch, a, layers, slot_blocks);
        break;
      default:
        launch_layers<256>(launch, a, layers, slot_blocks);
        break;
    }
  }
  run(launch, normalise_kernel, a.source.num_units(), kThreads, 0, a);
}

}  // namespace zipage::cuda
