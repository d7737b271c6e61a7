// The search for last(n) of scope exact on Hopper: products by warpgroups, of each pair of slots once, since a cosine
// is that of both of its slots.
//
// A block has a strip of columns and takes tiles of rows from the newest slot down to the strip's own. A column asks
// for the newest row above the threshold and is closed by the first that it gets. A row asks, as the column that it is
// elsewhere, for the newest of the strip's columns, which are all older than itself: it matters to rows that have no
// newer one. Of all that a slot is told the newest stays, so the order is no matter.
//
// An accumulator takes one comparison where a tile has nothing that anyone asks for. Where it has, the product leaves a
// bit a pair: above the threshold, or nearly so. A slot's newest bit is then made sure of in fp32; where it was not
// above the threshold, the next one is asked.
//
// One warpgroup multiplies, one warp fetches, and the two blocks of a multiprocessor fill each other's pauses.
#include <climits>

#include "ops/cuda/compress_key_panels.cuh"
#include "ops/cuda/compress_redundancy.h"
#include "ops/cuda/compress_redundancy_search.cuh"

// Compiled for other machines, the kernel is empty and what it calls has no caller.
#pragma nv_diag_suppress 177

namespace zipage::cuda {
namespace {

// ---- numbers ----
constexpr int kGroupThreads = 128;  // of the warpgroup
constexpr int kGroupWarps = kGroupThreads / kWarpSize;
constexpr int kThreads = kGroupThreads + kWarpSize;
constexpr int kBlocksAtOnce = 2;  // on a multiprocessor
constexpr int kColumns = 256;     // a strip
constexpr int kTile = 64;         // rows of a product
constexpr int kStripTiles = kColumns / kTile;
constexpr int kGroupBarrier = 1;
// Blocks that follow each other have the strips of so many units: their keys stay in the second-level cache.
constexpr int kUnitsTogether = 16;
static_assert(kColumns == 2 * kGroupThreads && kStripTiles == kGroupWarps && kTile == kMeanSlots);

template <int kHeadDim>
struct Shape {
  static constexpr int kPanels = kHeadDim / 64;
  static constexpr int kPanelBytes = kTile * kPanelRow;
  static constexpr int kTileBytes = kPanels * kPanelBytes;
  static constexpr int kColumnPanelBytes = kColumns * kPanelRow;
  static constexpr int kStages = 3 * 128 / kHeadDim;
};

struct Args : SearchArgs {
  const std::byte* keys;
  int first_unit, num_units;
  unsigned long long* last;
  int* closed;  // of each tile of slots, how many have found a newer row
};

template <int kHeadDim>
struct Shared {
  using S = Shape<kHeadDim>;
  std::byte columns[S::kPanels * S::kColumnPanelBytes];
  std::byte tiles[S::kStages][S::kTileBytes];
  alignas(16) uint32_t open[2][4];  // [p][q] has bits of columns [32 (2 q + p), + 32): no newer row as yet
  uint32_t hits[2][kTile];          // [p][row]: bits of columns as above, of one q
  uint64_t columns_full, full[S::kStages], empty[S::kStages];
  int tile_of[S::kStages];  // or kNoMore
};
constexpr int kNoMore = -1;
static_assert(kBlocksAtOnce * (sizeof(Shared<128>) + 1024) <= 228 * 1024);

// ---- kernels ----

struct Strip {
  int unit;  // of num_units
  int first_column, first_tile, newest_tile;

  // New columns first: what they find spares older strips the rows that they are.
  __device__ explicit Strip(const Args& a) {
    const int num_slots = a.source.num_slots, strips = ceil_div(num_slots, kColumns);
    const int block = static_cast<int>(blockIdx.x), first_unit = block / (kUnitsTogether * strips) * kUnitsTogether;
    const int units = min(kUnitsTogether, a.num_units - first_unit), at = block - first_unit * strips;
    const int strip = strips - 1 - at / units;
    unit = first_unit + at % units;
    first_column = strip * kColumns;
    first_tile = strip * kStripTiles;
    newest_tile = ceil_div(num_slots, kTile) - 1;
  }
};

// By a warp: the columns, then tiles as stages become free. Once all columns are closed, only those with rows that have
// no newer one.
template <int kHeadDim>
__device__ __forceinline__ void fetch(const Args& a, const Strip& strip, Shared<kHeadDim>& shared) {
  using S = Shape<kHeadDim>;
  const int lane = threadIdx.x % kWarpSize, num_tiles = strip.newest_tile + 1;
  const std::byte* keys = a.keys + int64_t{strip.unit} * num_tiles * S::kTileBytes;
  const int* closed = a.closed + int64_t{a.first_unit + strip.unit} * num_tiles;
  if (lane == 0) {
    barrier_arrive_expecting(&shared.columns_full, sizeof(shared.columns));
    for (int i = 0; i < kStripTiles; ++i) {
      const std::byte* from = keys + int64_t{min(strip.first_tile + i, strip.newest_tile)} * S::kTileBytes;
#pragma unroll
      for (int panel = 0; panel < S::kPanels; ++panel) {
        copy_bulk(shared.columns + panel * S::kColumnPanelBytes + i * S::kPanelBytes, from + panel * S::kPanelBytes,
                  S::kPanelBytes, &shared.columns_full);
      }
    }
  }
  const volatile uint32_t* open = &shared.open[0][0];
  Turn turn;
  for (int tile = strip.newest_tile; tile >= strip.first_tile; --tile) {
    barrier_wait(&shared.empty[turn.stage], turn.phase ^ 1);
    if (!__any_sync(kFullMask, open[lane % 8] != 0)) {
      unsigned asking = 0;
      for (; tile >= strip.first_tile; tile -= kWarpSize) {
        const int own = tile - lane;
        asking = __ballot_sync(
            kFullMask, own >= strip.first_tile && __ldcg(closed + own) < min(kTile, a.source.num_slots - own * kTile));
        if (asking != 0) break;
      }
      if (asking == 0) break;
      tile -= __ffs(static_cast<int>(asking)) - 1;
    }
    if (lane == 0) {
      shared.tile_of[turn.stage] = tile;
      barrier_arrive_expecting(&shared.full[turn.stage], S::kTileBytes);
      copy_bulk(shared.tiles[turn.stage], keys + int64_t{tile} * S::kTileBytes, S::kTileBytes,
                &shared.full[turn.stage]);
    }
    turn.advance(S::kStages);
  }
  barrier_wait(&shared.empty[turn.stage], turn.phase ^ 1);
  if (lane == 0) {
    shared.tile_of[turn.stage] = kNoMore;
    barrier_arrive(&shared.full[turn.stage]);
  }
}

// What the group's columns still ask for.
struct Open {
  uint32_t words[4];  // of columns [32 (2 q + t % 2), + 32), t being the lane's place in four
  bool any;           // of the whole strip

  __device__ explicit Open(const uint32_t (&open)[2][4]) {
    const uint4 even = *reinterpret_cast<const uint4*>(open[0]), odd = *reinterpret_cast<const uint4*>(open[1]);
    const uint4 own = threadIdx.x % 2 != 0 ? odd : even;
    words[0] = own.x, words[1] = own.y, words[2] = own.z, words[3] = own.w;
    any = (even.x | even.y | even.z | even.w | odd.x | odd.y | odd.z | odd.w) != 0;
  }
};

// Eight elements in half precision.
__device__ __forceinline__ void unpack_half8(uint4 v, float (&out)[kVector]) {
  const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    __half2 pair;
    memcpy(&pair, &words[i], sizeof(pair));
    const float2 x = __half22float2(pair);
    out[2 * i] = x.x, out[2 * i + 1] = x.y;
  }
}

// Keys of a tile's rows and of the strip's columns, and which slots they are.
template <int kHeadDim>
struct Pairs {
  const Args& a;
  int unit, first_row, first_column;
  const std::byte *rows, *columns;

  // By a warp: lane l has row first + l (kOfRows) or column first + l, and bits of columns, or rows, that may be above
  // the threshold. The newest that is, or none.
  template <bool kOfRows, int kWords>
  __device__ __forceinline__ Hit newest_hit(int first, uint32_t (&candidates)[kWords]) const {
    const int lane = threadIdx.x % kWarpSize;
    Hit hit{-1, 0.0F};
    while (true) {
      int newest = -1;
#pragma unroll
      for (int w = 0; w < kWords; ++w) {
        if (candidates[w] != 0) newest = w * 32 + 31 - __clz(static_cast<int>(candidates[w]));
      }
      if (hit.row >= 0) newest = -1;
      const unsigned asking = __ballot_sync(kFullMask, newest >= 0);
      if (asking == 0) return hit;
      // Eight lanes a pair, 16 bytes of each panel a lane; a few pairs one after the other, so that none waits for its
      // own sum.
      constexpr int kBesides = kWarpSize / 8, kAfter = 4, kAtOnce = kBesides * kAfter;
      float value = 0.0F;
#pragma unroll 1
      for (int at = 0; at < kWarpSize; at += kAtOnce) {
        if ((asking >> at & ((1U << kAtOnce) - 1)) == 0) continue;
        float dots[kAfter] = {}, dot[1];
#pragma unroll
        for (int i = 0; i < kAfter; ++i) {
          const int local = at + i * kBesides + lane / 8, other = max(__shfl_sync(kFullMask, newest, local), 0);
          const int row = kOfRows ? first + local : other, column = kOfRows ? other : first + local;
#pragma unroll
          for (int panel = 0; panel < Shape<kHeadDim>::kPanels; ++panel) {
            const int chunk = panel * 8 + lane % 8;
            float x[kVector], y[kVector];
            unpack_half8(*reinterpret_cast<const uint4*>(rows + panel_chunk<kTile>(row, chunk)), x);
            unpack_half8(*reinterpret_cast<const uint4*>(columns + panel_chunk<kColumns>(column, chunk)), y);
#pragma unroll
            for (int e = 0; e < kVector; ++e) dots[i] = fmaf(x[e], y[e], dots[i]);
          }
        }
        share_out<Sum, 4, 2>(dots, dot);  // lane 8 r + 2 i has half of pair kBesides i + r
        dot[0] += __shfl_xor_sync(kFullMask, dot[0], 1);
        dot[0] = __shfl_sync(kFullMask, dot[0], lane % kBesides * 8 + lane / kBesides % kAfter * 2);
        if (lane / kAtOnce * kAtOnce == at) value = dot[0];
      }
      unsigned doubts = __ballot_sync(kFullMask, newest >= 0 && value <= a.threshold + kDoubt);
      while (doubts != 0) {
        const int asker = __ffs(static_cast<int>(doubts)) - 1;
        doubts &= doubts - 1;
        const int other = __shfl_sync(kFullMask, newest, asker), own = first + asker;
        const float exact = exact_cosine<kHeadDim>(a, unit, first_row + (kOfRows ? own : other),
                                                   first_column + (kOfRows ? other : own));
        if (lane == asker) value = exact;
      }
      if (newest >= 0) {
        if (value > a.threshold) hit = {newest, value};
#pragma unroll
        for (int w = 0; w < kWords; ++w) candidates[w] &= newest / 32 == w ? ~(1U << newest % 32) : ~0U;
      }
    }
  }
};

// To a slot: another one, above the threshold.
__device__ __forceinline__ void tell(unsigned long long* last, int row, float value) {
  atomicMax(last, static_cast<unsigned long long>(row + 1) << 32 | __float_as_uint(value));
}

// By the warpgroup, with bits of each lane's row as share_bits() leaves them: of rows that are asked for, and of open
// columns.
template <int kHeadDim>
__device__ __forceinline__ void settle(const Pairs<kHeadDim>& pairs, const uint32_t (&of_rows)[4],
                                       const uint32_t (&of_columns)[4], Shared<kHeadDim>& shared) {
  const Args& a = pairs.a;
  const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize, g = lane / 4, t = lane % 4;
  const int num_tiles = ceil_div(a.source.num_slots, kTile);
  unsigned long long* last = a.last + int64_t{pairs.unit} * a.source.num_slots;
  // Columns [64 warp, + 64): bits of rows [32 j, + 32) of column 32 p + lane.
  uint32_t rows[2][2] = {};
#pragma unroll
  for (int q = 0; q < kGroupWarps; ++q) {
    shared.hits[t % 2][warp * 16 + t / 2 * 8 + g] = of_columns[q];
    sync_threads(kGroupBarrier, kGroupThreads);
    if (warp == q) {
#pragma unroll
      for (int i = 0; i < 4; ++i) rows[i / 2][i % 2] = shared.hits[i / 2][i % 2 * 32 + lane];
    }
    sync_threads(kGroupBarrier, kGroupThreads);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) rows[i / 2][i % 2] = transpose_bits(rows[i / 2][i % 2]);
  int num_closed = 0;
#pragma unroll 1
  for (int p = 0; p < 2; ++p) {
    uint32_t candidates[2] = {p == 0 ? rows[0][0] : rows[1][0], p == 0 ? rows[0][1] : rows[1][1]};
    const int first = warp * kTile + p * 32;
    const Hit hit = pairs.template newest_hit<false>(first, candidates);
    if (hit.row >= 0) tell(last + pairs.first_column + first + lane, pairs.first_row + hit.row, hit.value);
    const unsigned closes = __ballot_sync(kFullMask, hit.row >= 0);
    if (lane == 0) shared.open[p][warp] &= ~closes;
    num_closed += __popc(closes);
  }
  if (lane == 0 && num_closed > 0) {
    atomicAdd(a.closed + int64_t{pairs.unit} * num_tiles + pairs.first_column / kTile + warp, num_closed);
  }
  // Rows [16 warp, + 16), a lane each.
  uint32_t candidates[8];
#pragma unroll
  for (int w = 0; w < 8; ++w) {
    const uint32_t word = __shfl_sync(kFullMask, of_rows[w / 2], lane % 8 * 4 + lane / 8 % 2 * 2 + w % 2);
    candidates[w] = lane < 16 ? word : 0U;
  }
  const Hit hit = pairs.template newest_hit<true>(warp * 16, candidates);
  if (hit.row >= 0) tell(last + pairs.first_row + warp * 16 + lane, pairs.first_column + hit.row, hit.value);
  sync_threads(kGroupBarrier, kGroupThreads);
}

// By the warpgroup.
template <int kHeadDim>
__device__ __forceinline__ void search(const Args& a, const Strip& strip, Shared<kHeadDim>& shared) {
  using S = Shape<kHeadDim>;
  const int lane = threadIdx.x % kWarpSize, g = lane / 4, t = lane % 4;
  const int own = static_cast<int>(threadIdx.x) / kWarpSize * 16 + t / 2 * 8 + g;  // the row whose bits the lane gets
  const int unit = a.first_unit + strip.unit;
  const auto* last = reinterpret_cast<const int2*>(a.last + int64_t{unit} * a.source.num_slots);
  const uint64_t columns = operand(shared_address(shared.columns), 16, 1024);
  const float bar = a.threshold - kDoubt;
  Open open(shared.open);
  barrier_wait(&shared.columns_full, 0);
  for (Turn turn;; turn.advance(S::kStages)) {
    barrier_wait(&shared.full[turn.stage], turn.phase);
    const int tile = shared.tile_of[turn.stage];
    if (tile == kNoMore) return;
    // A row that has one newer than all of the strip asks for nothing.
    const int slot = tile * kTile + own;
    const bool counts = slot < a.source.num_slots;
    const int known = counts ? __ldcg(&last[slot].y) : INT_MAX;
    if (open.any || any_of_threads(kGroupBarrier, kGroupThreads, known <= strip.first_column)) {
      float d[kColumns / 2];
      pin(d);
      product_begin();
      const uint64_t rows = operand(shared_address(shared.tiles[turn.stage]), 16, 1024);
#pragma unroll
      for (int k = 0; k < kHeadDim / 16; ++k) {  // in units of an operand's address
        product_ss<HalfMath>(d, rows + (k / 4 * S::kPanelBytes + k % 4 * 32) / 16,
                             columns + (k / 4 * S::kColumnPanelBytes + k % 4 * 32) / 16, k > 0);
      }
      product_commit();
      product_wait<0>();
      pin(d);
      float most[4] = {d[0], d[1], d[2], d[3]};  // predicates would wait for each other longer
#pragma unroll
      for (int i = 4; i < kColumns / 2; ++i) most[i % 4] = fmaxf(most[i % 4], d[i]);
      uint32_t of_rows[4] = {}, of_columns[4] = {};
      bool asks = false;
      if (__any_sync(kFullMask, fmaxf(fmaxf(most[0], most[1]), fmaxf(most[2], most[3])) > bar)) {
        pin(d);  // or all of it would be done beforehand
        uint32_t words[2][kColumns / 32] = {}, hits[4];
#pragma unroll
        for (int n = 0; n < kColumns / 8; ++n) {
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            if (d[4 * n + 2 * h] > bar) words[h][n / 4] |= 1U << (n % 4 * 8);
            if (d[4 * n + 2 * h + 1] > bar) words[h][n / 4] |= 2U << (n % 4 * 8);
          }
        }
        share_bits(words, hits);
        const int older = counts ? slot - strip.first_column : 0;  // columns, older than the row
#pragma unroll
        for (int q = 0; q < 4; ++q) {
          const int within = older - (2 * q + t % 2) * 32;
          hits[q] &= within >= 32 ? ~0U : within > 0 ? (1U << within) - 1 : 0U;
          of_rows[q] = known <= strip.first_column ? hits[q] : 0U;
          of_columns[q] = hits[q] & open.words[q];
          asks = asks || (of_rows[q] | of_columns[q]) != 0;
        }
      }
      if (any_of_threads(kGroupBarrier, kGroupThreads, asks)) {
        settle<kHeadDim>({a, unit, tile * kTile, strip.first_column, shared.tiles[turn.stage], shared.columns}, of_rows,
                         of_columns, shared);
        open = Open(shared.open);
      }
    }
    barrier_arrive(&shared.empty[turn.stage]);
  }
}

template <int kHeadDim>
__global__ void __launch_bounds__(kThreads, kBlocksAtOnce) search_hopper_kernel(const __grid_constant__ Args a) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using S = Shape<kHeadDim>;
  extern __shared__ __align__(1024) std::byte memory[];
  auto& shared = *reinterpret_cast<Shared<kHeadDim>*>(memory);
  const int thread = threadIdx.x;
  const Strip strip(a);
  if (thread == 0) {
    barrier_init(&shared.columns_full, 1);
    for (int i = 0; i < S::kStages; ++i) {
      barrier_init(&shared.full[i], 1);
      barrier_init(&shared.empty[i], kGroupThreads);
    }
    barrier_init_done();
  }
  if (thread < kColumns / 32) {
    const int within = a.source.num_slots - strip.first_column - thread * 32;
    shared.open[thread % 2][thread / 2] = within >= 32 ? ~0U : within > 0 ? (1U << within) - 1 : 0U;
  }
  __syncthreads();
  wait_for_previous();
  if (thread >= kGroupThreads) {
    fetch(a, strip, shared);
  } else {
    search(a, strip, shared);
  }
#endif
}

// ---- launcher ----

template <int kHeadDim>
void launch_search(const Launch& launch, const Args& a) {
  constexpr int kBytes = sizeof(Shared<kHeadDim>);
  const auto kernel = search_hopper_kernel<kHeadDim>;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes), "redundancy");
  run(launch, kernel, ceil_div(a.source.num_slots, kColumns) * a.num_units, kThreads, kBytes, a);
}

}  // namespace

bool serves_search_hopper(const Launch& launch, int head_dim) {
  return launch.compute_capability == 90 && (head_dim == 64 || head_dim == 128);
}

void search_hopper(const Launch& launch, const HopperSearch& s) {
  Args a{{{s.source, s.cos_sin, s.rotary_dim}, s.threshold, s.inverse}};
  a.keys = reinterpret_cast<const std::byte*>(s.keys);
  a.first_unit = s.first_unit;
  a.num_units = s.num_units;
  a.last = s.last;
  a.closed = s.closed;
  dispatch<64, 128>(s.source.geometry.head_dim, [&]<int kHeadDim>() { launch_search<kHeadDim>(launch, a); });
}

}  // namespace zipage::cuda
