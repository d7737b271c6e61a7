// Stage 4: how much of a slot's key others say as well. Scope exact, and mean where compress_redundancy_mean.cu does
// not serve the heads or keys are taken as they lie in the cache, go by these kernels:
//
// 1. prepare: k^[t] in fp32 (RoPE undone for content keys); 1/|k|, sums over 64 slots, k^ in half precision for
// `search`.
//
// 2. sum: R[m] = k^[m] . u in fp32, u being the sum over all slots, added up from those first.
//
// 3. search (exact): last(n) for tiles of 256 columns, from the newest row down until every column has its own.
// c[last(n), n] is summed per row. Hopper has a search of its own (compress_redundancy_search_hopper.cu), which leaves
// that sum to what comes behind.
//
// 4. normalise: softmax over all slots.
//
// Lightning comes to R in a way of its own (compress_redundancy_lightning.cu).
#include "ops/cuda/compress_key_panels.cuh"
#include "ops/cuda/compress_keys.cuh"
#include "ops/cuda/compress_redundancy.h"
#include "ops/cuda/compress_redundancy_search.cuh"

namespace zipage::cuda {
namespace {

// ---- numbers ----
constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarpSize;
constexpr int kSlots = kMeanSlots;  // of a block of `prepare` and `sum`
constexpr int kColumns = 256;       // of a block of `search`
constexpr int kRows = 64;           // rows that `search` stages at a time
static_assert(kRows == kSlots && kColumns == kWarps * kSearchColumns);

struct Args : SearchArgs {
  int chunk;       // slots, of the softmax's temperature; at least num_slots for one chunk
  bool skip_self;  // exact
  float temperature;
  float* redundancy = nullptr;  // R, then R' [units, num_slots]
  // Scratch. `search` works on units [first_unit, first_unit + gridDim.y) at a time.
  float* sums = nullptr;                // [units, ceil(num_slots / kSlots), head_dim]
  unsigned long long* taken = nullptr;  // exact: what last(n) take off, fixed point [units, num_slots]
  unsigned long long* last = nullptr;   // exact by search_hopper(): what it finds [units, num_slots]
  int* closed = nullptr;                // its scratch
  __half* unit_keys = nullptr;  // exact [units at a time, padded slots, head_dim]; for search_hopper() in panels
  int padded_slots;             // a multiple of kRows
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
          const int row = t % kSlots, chunk = c + j * L::kCount;
          auto* tile = reinterpret_cast<std::byte*>(a.unit_keys +
                                                    (int64_t{local} * a.padded_slots + blockIdx.x * kSlots) * kHeadDim);
          const int at = a.last != nullptr ? panel_chunk<kSlots>(row, chunk) : (row * kHeadDim + chunk * kVector) * 2;
          *reinterpret_cast<uint4*>(tile + at) = make_uint4(pack_half(x[j][0], x[j][1]), pack_half(x[j][2], x[j][3]),
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

__global__ void add_shares_kernel(float* sums, int shares, int head_dim) {
  wait_for_previous();
  sums += int64_t{blockIdx.x} * shares * head_dim + threadIdx.x;
  float v = 0.0F;
#pragma unroll 8
  for (int i = 0; i < shares; ++i) v += sums[int64_t{i} * head_dim];
  sums[0] = v;
}

template <int kHeadDim, bool kWide>
__global__ void __launch_bounds__(kThreads, 2) sum_kernel(const __grid_constant__ Args a) {
  wait_for_previous();
  using L = Lanes<kHeadDim, kWide>;
  const int c = threadIdx.x % L::kCount;
  const int num_slots = a.source.num_slots, heads = a.source.kv.num_kv_heads;
  for (int head = threadIdx.x / kWarpSize; head < heads; head += blockDim.x / kWarpSize) {
    const int unit = a.first_unit + blockIdx.y * heads + head;
    const auto* from = reinterpret_cast<const float4*>(a.sums + int64_t{unit} * gridDim.x * kHeadDim);
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

template <int kHeadDim>
__global__ void __launch_bounds__(kThreads) search_kernel(const __grid_constant__ Args a) {
  wait_for_previous();
  constexpr int kRowBytes = kHeadDim * 2, kChunks = kRowBytes / 16;
  constexpr int kStageBytes = kRows * kRowBytes, kStages = kColumns / kRows;
  static_assert(kColumns == kThreads);
  __shared__ Hit found[kColumns];
  extern __shared__ __align__(128) std::byte stages[];  // [kStages, kRows, head_dim]; before that the columns
  const int warp = threadIdx.x / kWarpSize, unit = a.first_unit + blockIdx.y, num_slots = a.source.num_slots;
  const __half* keys = a.unit_keys + int64_t{blockIdx.y} * a.padded_slots * kHeadDim;
  const auto stage_rows = [&](int tile, int stage) {
    const auto* from = reinterpret_cast<const std::byte*>(keys + int64_t{tile} * kRows * kHeadDim);
    for (int i = threadIdx.x; i < kRows * kChunks; i += kThreads) {
      copy_async16(shared_address(stages + stage * kStageBytes + swizzle<kRowBytes>(i / kChunks, i % kChunks)),
                   from + i * 16, true);
    }
  };
  const int first_tile = blockIdx.x * kStages, num_tiles = a.padded_slots / kRows;
  for (int i = 0; i < kStages; ++i) stage_rows(min(first_tile + i, num_tiles - 1), i);
  copy_commit();
  copy_wait<0>();
  __syncthreads();
  const int own = warp * kSearchColumns;
  Search<kHeadDim> search(a, unit, blockIdx.x * kColumns + own, found + own, stages + own * kRowBytes);
  __syncthreads();

  // Row tiles from the newest down, kStages - 1 of them on their way.
  const int newest = ceil_div(num_slots, kRows) - 1;
  for (int i = 0; i < kStages - 1; ++i) {
    if (newest - i >= 0) stage_rows(newest - i, i);
    copy_commit();
  }
  for (int tile = newest; tile >= 0; --tile) {
    copy_wait<kStages - 2>();
    if (!__syncthreads_or(search.open != 0)) break;
    if (tile - (kStages - 1) >= 0) stage_rows(tile - (kStages - 1), (newest - tile + kStages - 1) % kStages);
    copy_commit();
    const std::byte* stage = stages + (newest - tile) % kStages * kStageBytes;
    for (int m = kRows / 16 - 1; m >= 0 && search.any_open(); --m) {
      search.look_at(tile * kRows + m * 16, stage + m * 16 * kRowBytes);
    }
  }
  copy_wait<0>();
  __syncthreads();
  const Hit hit = found[threadIdx.x];
  if (hit.row >= 0) atomicAdd(&a.taken[int64_t{unit} * num_slots + hit.row], hit.fixed());
}

__global__ void __launch_bounds__(kThreads) normalise_kernel(const __grid_constant__ Args a) {
  wait_for_previous();
  __shared__ float shared[kWarpSize];
  const int num_slots = a.source.num_slots;
  float* r = a.redundancy + int64_t{blockIdx.x} * num_slots;
  unsigned long long* taken = a.taken != nullptr ? a.taken + int64_t{blockIdx.x} * num_slots : nullptr;
  if (a.last != nullptr) {
    for (int t = threadIdx.x; t < num_slots; t += kThreads) {
      const unsigned long long last = a.last[int64_t{blockIdx.x} * num_slots + t];
      if (last == 0) continue;
      const Hit hit{static_cast<int>(last >> 32) - 1, __uint_as_float(static_cast<unsigned>(last))};
      atomicAdd(&taken[hit.row], hit.fixed());
    }
    __syncthreads();
  }
  const auto value = [&](int t) {
    const int start = t / a.chunk * a.chunk, length = min(a.chunk, num_slots - start);
    const float off = taken != nullptr ? static_cast<float>(__ldcg(taken + t)) / kFixedOne : 0.0F;
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
  add_shares(launch, a.sums + int64_t{a.first_unit} * slot_blocks * kHeadDim, layers * heads, slot_blocks, kHeadDim);
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
  const int units = layers * a.source.kv.num_kv_heads;
  if (a.last != nullptr) {
    search_hopper(launch, {.source = a.source,
                           .cos_sin = a.cos_sin,
                           .rotary_dim = a.rotary_dim,
                           .threshold = a.threshold,
                           .inverse = a.inverse,
                           .keys = a.unit_keys,
                           .first_unit = a.first_unit,
                           .num_units = units,
                           .last = a.last,
                           .closed = a.closed});
    return;
  }
  constexpr int kBytes = kColumns * kHeadDim * 2;
  check(cudaFuncSetAttribute(search_kernel<kHeadDim>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes),
        "redundancy");
  const dim3 grid(ceil_div(a.source.num_slots, kColumns), units);
  run(launch, search_kernel<kHeadDim>, grid, kThreads, kBytes, a);
}

// Half-precision keys of this many bytes at most at a time, but at least one layer's.
constexpr size_t kUnitKeyBytes = size_t{192} << 20;

struct Plan {
  size_t inverse, sums, taken, last, closed, unit_keys;  // bytes
  int padded_slots, layers_at_a_time;
  size_t cleared() const { return taken + last + closed; }
  size_t total() const { return inverse + sums + cleared() + unit_keys; }
};

Plan plan(const KvGeometry& g, int num_slots) {
  const size_t units = static_cast<size_t>(g.num_layers) * g.num_kv_heads;
  Plan p{};
  p.padded_slots = ceil_div(num_slots, kRows) * kRows;
  p.inverse = padded(units * num_slots * sizeof(float));
  p.sums = padded(units * ceil_div(num_slots, kSlots) * g.head_dim * sizeof(float));
  p.taken = p.last = padded(units * num_slots * sizeof(unsigned long long));
  p.closed = padded(units * ceil_div(num_slots, kRows) * sizeof(int));
  const size_t layer = static_cast<size_t>(p.padded_slots) * g.num_kv_heads * g.head_dim * sizeof(__half);
  const size_t layers = static_cast<size_t>(g.num_layers), fit = kUnitKeyBytes / layer;
  p.layers_at_a_time = static_cast<int>(fit < 1 ? 1 : fit > layers ? layers : fit);
  const size_t bound = layers * layer < kUnitKeyBytes ? layers * layer : kUnitKeyBytes;  // grows with num_slots
  p.unit_keys = padded(layer > bound ? layer : bound);
  return p;
}

}  // namespace

void add_shares(const Launch& launch, float* sums, int units, int shares, int head_dim) {
  run(launch, add_shares_kernel, units, head_dim, 0, sums, shares, head_dim);
}

size_t redundancy_scratch_bytes(const KvGeometry& g, int num_slots) {
  return plan(g, num_slots).total();
}

void redundancy(const Launch& launch, const RedundancyParams& p) {
  const KvGeometry& g = p.source.kv.geometry;
  const int num_slots = p.source.num_slots, slot_blocks = ceil_div(num_slots, kSlots);
  const Plan scratch = plan(g, num_slots);
  const bool lightning = p.scope == RedundancyScope::kLightning, exact = p.scope == RedundancyScope::kExact;
  Args a{{{Source(p.source), p.keys == RedundancyKeys::kContent ? p.cos_sin : nullptr, p.rotary_dim}}};
  a.chunk = lightning ? kLightningChunk : slot_blocks * kSlots;
  a.skip_self = exact;
  a.threshold = p.threshold;
  a.temperature = p.temperature;
  a.redundancy = p.redundancy;
  a.padded_slots = scratch.padded_slots;
  std::byte* next = p.scratch;
  a.inverse = reinterpret_cast<float*>(next), next += scratch.inverse;
  a.sums = reinterpret_cast<float*>(next), next += scratch.sums;
  if (lightning) {
    lightning_redundancy(launch, {.source = a.source,
                                  .cos_sin = a.cos_sin,
                                  .rotary_dim = a.rotary_dim,
                                  .threshold = a.threshold,
                                  .redundancy = a.redundancy,
                                  .inverse = a.inverse});
  } else if (!exact && a.cos_sin != nullptr && serves_mean_redundancy(g.head_dim, p.rotary_dim)) {
    mean_redundancy(launch, {.source = a.source,
                             .cos_sin = a.cos_sin,
                             .num_positions = p.source.logical_len(),
                             .num_units = a.source.num_units(),
                             .slot_blocks = slot_blocks,
                             .redundancy = a.redundancy,
                             .inverse = a.inverse,
                             .sums = a.sums});
  } else {
    if (exact) {
      const bool by_hopper = serves_search_hopper(launch, g.head_dim);
      check(cudaMemsetAsync(next, 0, by_hopper ? scratch.cleared() : scratch.taken, launch.stream), "redundancy");
      a.taken = reinterpret_cast<unsigned long long*>(next), next += scratch.taken;
      if (by_hopper) {
        a.last = reinterpret_cast<unsigned long long*>(next);
        a.closed = reinterpret_cast<int*>(next + scratch.last);
      }
      next += scratch.last + scratch.closed;
      a.unit_keys = reinterpret_cast<__half*>(next);
    }
    const int layers_at_a_time = exact ? scratch.layers_at_a_time : g.num_layers;
    for (int layer = 0; layer < g.num_layers; layer += layers_at_a_time) {
      a.first_unit = layer * g.num_kv_heads;
      const int layers = g.num_layers - layer < layers_at_a_time ? g.num_layers - layer : layers_at_a_time;
      dispatch<64, 96, 128, 256>(g.head_dim,
                                 [&]<int kHeadDim>() { launch_layers<kHeadDim>(launch, a, layers, slot_blocks); });
    }
  }
  run(launch, normalise_kernel, a.source.num_units(), kThreads, 0, a);
}

}  // namespace zipage::cuda
