// Stage 4: how much of a slot's key others say as well.
//
//   prepare   k^[t] in fp32 (RoPE undone for content keys); 1/|k|, the sums of 128 slots, and k^ in half precision for
//   `search` sum       R[m] = k^[m] . u in fp32, u being the sum over the slot's chunk search    last(n) for tiles of
//   256 columns, from the newest row down until every column of the tile has its own;
//             c[last(n), n] is summed per row in fixed point, so the order of the blocks is no matter
//   normalise softmax over all slots
//
// `search` compares half-precision cosines on tensor cores; where one lies too near the threshold to tell, the warp
// computes that one in fp32. So last(n) is what fp32 arithmetic finds.
#include "ops/cuda/compress_source.cuh"

namespace zipage::cuda {
namespace {

// ---- numbers ----
constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarpSize;
constexpr int kSlots = 128;    // of a block of `prepare` and `sum`
constexpr int kMaxPairs = 4;   // 16-bit pairs a lane holds: head_dim up to 256
constexpr int kColumns = 256;  // of a block of `search`
constexpr int kColumnsPerWarp = kColumns / kWarps;
constexpr int kRows = 64;  // rows that `search` stages at a time
constexpr int kLightningChunk = 256;
constexpr float kDoubt = 2e-4F;  // more than the error of a half-precision cosine of unit vectors
constexpr float kFixedOne = 16777216.0F;
static_assert(kLightningChunk == kColumns && kLightningChunk % kSlots == 0);

struct Args {
  Source source;
  const float* cos_sin;  // or null: keys as they lie in the cache
  int rotary_dim, head_dim;
  int chunk;       // slots; at least num_slots for one chunk
  bool skip_self;  // all scopes but mean
  float threshold, temperature;
  float* redundancy;  // R, then R' [units, num_slots]
  // Scratch. `search` works on units [first_unit, first_unit + gridDim.y) at a time.
  float* inverse;             // 1 / |k| [units, num_slots]
  float* sums;                // [units, ceil(num_slots / kSlots), head_dim]
  unsigned long long* taken;  // what `search` takes off, fixed point [units, num_slots]
  __half* unit_keys;          // [units at a time, padded slots, head_dim]
  int padded_slots;
  int first_unit;
};

// ---- kernels ----

// The lane's pairs of slot t's key, RoPE undone.
__device__ __forceinline__ void load_key(const Args& a, int unit, int t, float2 (&own)[kMaxPairs]) {
  const int lane = threadIdx.x % kWarpSize;
  const int pairs = a.head_dim / 2, rotary_pairs = a.rotary_dim / 2, half_pairs = a.rotary_dim / 4;
  const std::byte* row = a.source.key_row(unit, t);
  const auto load = [&](int pair) {
    return a.source.kv.is_fp8 ? fp8x2_to_float2(reinterpret_cast<const uint16_t*>(row)[pair])
                              : unpack(reinterpret_cast<const uint32_t*>(row)[pair]);
  };
  if (a.cos_sin == nullptr) {
#pragma unroll
    for (int j = 0; j < kMaxPairs; ++j) {
      const int c = lane + j * kWarpSize;
      own[j] = c < pairs ? load(c) : make_float2(0.0F, 0.0F);
    }
    return;
  }
  const auto* table = reinterpret_cast<const float2*>(a.cos_sin + int64_t{a.source.position(unit, t)} * a.rotary_dim);
  // The table's factor on cosines and sines was on k as well.
  const float factor = a.cos_sin[0], scale = 1.0F / (factor * factor);
#pragma unroll
  for (int j = 0; j < kMaxPairs; ++j) {
    const int c = lane + j * kWarpSize;
    own[j] = c < pairs ? load(c) : make_float2(0.0F, 0.0F);
    if (c < rotary_pairs) {
      const bool low = c < half_pairs;
      const int angle = low ? c : c - half_pairs;
      const float2 partner = load(low ? c + half_pairs : angle), cosine = table[angle];
      float2 sine = table[half_pairs + angle];
      if (!low) sine.x = -sine.x, sine.y = -sine.y;
      own[j].x = (own[j].x * cosine.x + partner.x * sine.x) * scale;
      own[j].y = (own[j].y * cosine.y + partner.y * sine.y) * scale;
    }
  }
}

__global__ void __launch_bounds__(kThreads) prepare_kernel(const __grid_constant__ Args a) {
  extern __shared__ float shared[];  // [kWarps, head_dim]
  const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
  const int unit = a.first_unit + blockIdx.y, num_slots = a.source.num_slots, pairs = a.head_dim / 2;
  float2 sum[kMaxPairs] = {};
  for (int i = warp; i < kSlots; i += kWarps) {
    const int t = blockIdx.x * kSlots + i;
    if (t >= a.padded_slots) break;
    float2 key[kMaxPairs] = {};
    if (t < num_slots) {
      load_key(a, unit, t, key);
      float square = 0.0F;
#pragma unroll
      for (int j = 0; j < kMaxPairs; ++j) square += key[j].x * key[j].x + key[j].y * key[j].y;
      square = warp_reduce<Sum>(square);
      const float inverse = square > 0.0F ? 1.0F / sqrtf(square) : 0.0F;
      if (lane == 0) a.inverse[int64_t{unit} * num_slots + t] = inverse;
#pragma unroll
      for (int j = 0; j < kMaxPairs; ++j) {
        key[j].x *= inverse, key[j].y *= inverse;
        sum[j].x += key[j].x, sum[j].y += key[j].y;
      }
    }
    if (a.unit_keys == nullptr) continue;
    auto* row = reinterpret_cast<uint32_t*>(a.unit_keys + (int64_t{blockIdx.y} * a.padded_slots + t) * a.head_dim);
#pragma unroll
    for (int j = 0; j < kMaxPairs; ++j) {
      const int c = lane + j * kWarpSize;
      if (c < pairs) row[c] = pack_half(key[j].x, key[j].y);
    }
  }
#pragma unroll
  for (int j = 0; j < kMaxPairs; ++j) {
    const int c = lane + j * kWarpSize;
    if (c < pairs) reinterpret_cast<float2*>(shared + warp * a.head_dim)[c] = sum[j];
  }
  __syncthreads();
  float* out = a.sums + (int64_t{unit} * gridDim.x + blockIdx.x) * a.head_dim;
  for (int d = threadIdx.x; d < a.head_dim; d += kThreads) {
    float v = 0.0F;
    for (int w = 0; w < kWarps; ++w) v += shared[w * a.head_dim + d];
    out[d] = v;
  }
}

__global__ void __launch_bounds__(kThreads) sum_kernel(const __grid_constant__ Args a) {
  extern __shared__ float u[];  // [head_dim]
  const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
  const int unit = a.first_unit + blockIdx.y, num_slots = a.source.num_slots, pairs = a.head_dim / 2;
  const int chunk = blockIdx.x * kSlots / a.chunk;
  const int first = chunk * (a.chunk / kSlots),
            last = min(first + ceil_div(a.chunk, kSlots), static_cast<int>(gridDim.x));
  for (int d = threadIdx.x; d < a.head_dim; d += kThreads) {
    float v = 0.0F;
    for (int c = first; c < last; ++c) v += a.sums[(int64_t{unit} * gridDim.x + c) * a.head_dim + d];
    u[d] = v;
  }
  __syncthreads();
  for (int i = warp; i < kSlots; i += kWarps) {
    const int t = blockIdx.x * kSlots + i;
    if (t >= num_slots) break;
    float2 key[kMaxPairs];
    load_key(a, unit, t, key);
    float dot = 0.0F;
#pragma unroll
    for (int j = 0; j < kMaxPairs; ++j) {
      const int c = lane + j * kWarpSize;
      if (c >= pairs) break;
      const float2 v = reinterpret_cast<const float2*>(u)[c];
      dot += key[j].x * v.x + key[j].y * v.y;
    }
    dot = warp_reduce<Sum>(dot);
    if (lane == 0) {
      const float inverse = a.inverse[int64_t{unit} * num_slots + t];
      a.redundancy[int64_t{unit} * num_slots + t] = dot * inverse - (a.skip_self && inverse > 0.0F ? 1.0F : 0.0F);
    }
  }
}

// c[m, n] in fp32, by the whole warp.
__device__ float exact_cosine(const Args& a, int unit, int m, int n) {
  float2 x[kMaxPairs], y[kMaxPairs];
  load_key(a, unit, m, x);
  load_key(a, unit, n, y);
  float dot = 0.0F;
#pragma unroll
  for (int j = 0; j < kMaxPairs; ++j) dot += x[j].x * y[j].x + x[j].y * y[j].y;
  const float* inverse = a.inverse + int64_t{unit} * a.source.num_slots;
  return warp_reduce<Sum>(dot) * inverse[m] * inverse[n];
}

template <int kHeadDim>
__global__ void __launch_bounds__(kThreads) search_kernel(const __grid_constant__ Args a) {
  constexpr int kSteps = kHeadDim / 16, kRowBytes = kHeadDim * 2, kChunks = kRowBytes / 16;
  constexpr int kTiles = kColumnsPerWarp / 8, kStageBytes = kRows * kRowBytes;
  extern __shared__ __align__(128) std::byte stages[];  // [2, kRows, head_dim]
  const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize, g = lane / 4, t = lane % 4;
  const int unit = a.first_unit + blockIdx.y, num_slots = a.source.num_slots;
  const __half* keys = a.unit_keys + int64_t{blockIdx.y} * a.padded_slots * kHeadDim;
  unsigned long long* taken = a.taken + int64_t{unit} * num_slots;
  const int first_column = blockIdx.x * kColumns + warp * kColumnsPerWarp;
  const int low = blockIdx.x * kColumns / a.chunk * a.chunk;
  const int high = min(low + a.chunk, num_slots);

  uint32_t columns[kTiles][kSteps][2];  // B fragments
  unsigned open = 0;                    // bit 2 * tile + parity: that column of the lane still looks
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
    const int column = first_column + n * 8;
    const auto* row = reinterpret_cast<const uint32_t*>(keys + int64_t{min(column + g, a.padded_slots - 1)} * kHeadDim);
#pragma unroll
    for (int k = 0; k < kSteps; ++k) columns[n][k][0] = row[k * 8 + t], columns[n][k][1] = row[k * 8 + t + 4];
#pragma unroll
    for (int i = 0; i < 2; ++i) open |= column + 2 * t + i < num_slots ? 1U << (2 * n + i) : 0U;
  }

  // A tile of 16 rows from m0 on has been multiplied: c[n][i] is row g (i < 2) or g + 8 and column 2t + i % 2 of tile
  // n.
  const auto take_hits = [&](int m0, const float(&c)[kTiles][4]) {
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int column = first_column + n * 8 + 2 * t + i;
        const bool looks = (open >> (2 * n + i) & 1U) != 0;
        const auto hit = [&](float v, int m) {
          return looks && v > a.threshold - kDoubt && m != column && m < num_slots;
        };
        unsigned mine = (hit(c[n][i], m0 + g) ? 1U : 0U) | (hit(c[n][i + 2], m0 + g + 8) ? 2U : 0U);
        while (__any_sync(kFullMask, mine != 0)) {
          int best = mine >= 2   ? g + 8
                     : mine == 1 ? g
                                 : -1;  // the column's newest row, of the eight lanes that share it
          best = max(best, __shfl_xor_sync(kFullMask, best, 4));
          best = max(best, __shfl_xor_sync(kFullMask, best, 8));
          best = max(best, __shfl_xor_sync(kFullMask, best, 16));
          const int holder = (best < 0 ? 0 : best % 8) * 4 + t;
          const float low_row = __shfl_sync(kFullMask, c[n][i], holder),
                      high_row = __shfl_sync(kFullMask, c[n][i + 2], holder);
          float value = best >= 8 ? high_row : low_row;
          bool sure = best >= 0 && value > a.threshold + kDoubt;
          // Doubtful columns one after the other: lanes 0..3 (g = 0) speak for them.
          unsigned doubtful = __ballot_sync(kFullMask, g == 0 && best >= 0 && !sure);
          while (doubtful != 0) {
            const int speaker = __ffs(doubtful) - 1;
            doubtful &= doubtful - 1;
            const int m = m0 + __shfl_sync(kFullMask, best, speaker), n_exact = __shfl_sync(kFullMask, column, speaker);
            const float exact = exact_cosine(a, unit, m, n_exact);
            if (t == speaker) {
              value = exact;
              sure = exact > a.threshold;
              if (!sure && g == best % 8) mine &= best >= 8 ? 1U : 2U;  // no hit after all: look at the next row
            }
          }
          if (sure) {
            open &= ~(1U << (2 * n + i));
            mine = 0;
            if (g == 0) atomicAdd(&taken[m0 + best], static_cast<unsigned long long>(value * kFixedOne + 0.5F));
          }
        }
      }
    }
  };

  const auto stage_rows = [&](int tile) {
    std::byte* stage = stages + (tile & 1) * kStageBytes;
    const auto* from = reinterpret_cast<const std::byte*>(keys + int64_t{tile} * kRows * kHeadDim);
    for (int c = threadIdx.x; c < kRows * kChunks; c += kThreads) {
      copy_async16(shared_address(stage + swizzle<kRowBytes>(c / kChunks, c % kChunks)), from + c * 16, true);
    }
  };
  int tile = ceil_div(high, kRows) - 1;
  stage_rows(tile);
  copy_commit();
  for (; tile * kRows + kRows > low; --tile) {
    if (tile > 0) stage_rows(tile - 1);
    copy_commit();
    copy_wait<1>();
    if (!__syncthreads_or(open != 0)) break;
    const std::byte* stage = stages + (tile & 1) * kStageBytes;
    for (int m = kRows / 16 - 1; m >= 0 && __any_sync(kFullMask, open != 0); --m) {
      float c[kTiles][4] = {};
#pragma unroll
      for (int k = 0; k < kSteps; ++k) {
        uint32_t row[4];
        load_matrices(row, shared_address(stage + swizzle<kRowBytes>(m * 16 + (lane & 15), 2 * k + (lane >> 4))));
#pragma unroll
        for (int n = 0; n < kTiles; ++n) mma<HalfMath>(c[n], row, columns[n][k][0], columns[n][k][1]);
      }
      float largest = -1.0F;
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) largest = fmaxf(largest, c[n][i]);
      }
      if (__any_sync(kFullMask, largest > a.threshold - kDoubt)) take_hits(tile * kRows + m * 16, c);
    }
    __syncthreads();
  }
  copy_wait<0>();
}

__global__ void __launch_bounds__(kThreads) normalise_kernel(const __grid_constant__ Args a) {
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

template <int kHeadDim>
void launch_search(const Launch& launch, const Args& a, int num_units) {
  const int bytes = 2 * kRows * kHeadDim * 2;
  check(cudaFuncSetAttribute(search_kernel<kHeadDim>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
        "redundancy");
  search_kernel<kHeadDim>
      <<<dim3(ceil_div(a.source.num_slots, kColumns), num_units), kThreads, bytes, launch.stream>>>(a);
}

// Half-precision keys of this many bytes at most at a time, but at least one unit's.
constexpr size_t kUnitKeyBytes = size_t{192} << 20;

struct Plan {
  size_t inverse, sums, taken, unit_keys;  // bytes
  int padded_slots, units_at_a_time;
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
  const size_t unit = static_cast<size_t>(p.padded_slots) * g.head_dim * sizeof(__half);
  const size_t fit = kUnitKeyBytes / unit;
  p.units_at_a_time = static_cast<int>(fit < 1 ? 1 : fit > units ? units : fit);
  const size_t bound = units * unit < kUnitKeyBytes ? units * unit : kUnitKeyBytes;  // grows with num_slots
  p.unit_keys = padded(unit > bound ? unit : bound);
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
  Args a{.source = Source(p.source),
         .cos_sin = p.keys == RedundancyKeys::kContent ? p.cos_sin : nullptr,
         .rotary_dim = p.rotary_dim,
         .head_dim = g.head_dim,
         .chunk = p.scope == RedundancyScope::kLightning ? kLightningChunk : slot_blocks * kSlots,
         .skip_self = search,
         .threshold = p.threshold,
         .temperature = p.temperature,
         .redundancy = p.redundancy};
  std::byte* next = p.scratch;
  a.inverse = reinterpret_cast<float*>(next), next += scratch.inverse;
  a.sums = reinterpret_cast<float*>(next), next += scratch.sums;
  if (search) {
    a.taken = reinterpret_cast<unsigned long long*>(next);
    a.unit_keys = reinterpret_cast<__half*>(next + scratch.taken);
    check(cudaMemsetAsync(a.taken, 0, scratch.taken, launch.stream), "redundancy");
  }
  a.padded_slots = search ? scratch.padded_slots : num_slots;
  const int units = a.source.num_units(), at_a_time = search ? scratch.units_at_a_time : units;
  for (a.first_unit = 0; a.first_unit < units; a.first_unit += at_a_time) {
    const int some = units - a.first_unit < at_a_time ? units - a.first_unit : at_a_time;
    const dim3 grid(slot_blocks, some);
    prepare_kernel<<<grid, kThreads, kWarps * g.head_dim * sizeof(float), launch.stream>>>(a);
    sum_kernel<<<grid, kThreads, g.head_dim * sizeof(float), launch.stream>>>(a);
    if (!search) continue;
    switch (g.head_dim) {
      case 64:
        launch_search<64>(launch, a, some);
        break;
      case 96:
        launch_search<96>(launch, a, some);
        break;
      case 128:
        launch_search<128>(launch, a, some);
        break;
      default:
        launch_search<256>(launch, a, some);
        break;
    }
  }
  normalise_kernel<<<units, kThreads, 0, launch.stream>>>(a);
}

}  // namespace zipage::cuda
