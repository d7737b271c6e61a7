// All linear layers between one attention and the next for a few rows, limited by how fast the weights are read.
//
//   output -> residual, norm -> gate, up -> SiLU -> down -> residual, norm -> the next layer's QKV
//
// One kernel, so that the weights never stop coming: a warp of every block fetches all the tiles that the block will
// need, GEMM after GEMM, as far ahead as shared memory holds. What one GEMM gives and the next takes goes through
// global memory, behind a barrier of all blocks, and the blocks' stay at that barrier is shorter than what has been
// fetched lasts.
//
// A block has the same columns of every GEMM: kHidden of the hidden size, kQkv of QKV, 2 * kHalf of gate and of up. Two
// groups of warps multiply. Where the tile is wide (gate, up) each has half of it, gate and up of the same columns;
// else they take turns along K. A group's warps share each box of K, and shares of a sum meet in shared memory. The
// product is transposed, columns by rows of x, so that few rows waste nothing: a warpgroup's own product reads 64 rows
// at least, which takes longer than their weights do to come (decision 0012).
//
// A norm needs the whole row: its input goes on without the division by the root mean square, of which every block
// leaves its share, and whoever multiplies next divides what comes out.
//
// x is read by every block alike. The blocks of a cluster take turns in fetching it, for all of them.
#include <algorithm>

#include "ops/cuda/hopper.cuh"
#include "ops/cuda/launch.h"
#include "ops/cuda/tensor_map.h"

// Compiled for other machines, the kernel is empty and what it calls has no caller.
#pragma nv_diag_suppress 177

namespace zipage::cuda {
namespace {

// ---- numbers ----
constexpr int kHidden = 32, kQkv = 48, kHalf = 48;  // columns
constexpr int kGroupWarps = 4, kGroupThreads = kGroupWarps * kWarpSize;
constexpr int kThreads = 3 * kGroupThreads;  // one group fetches, two multiply
constexpr int kMultiplierWarps = 2 * kGroupWarps, kMultiplierThreads = kMultiplierWarps * kWarpSize;
constexpr int kDepth = 64;  // of K a box holds: 128 bytes a row
constexpr int kRowBytes = kDepth * 2;
constexpr int kSlotBytes = 2 * kHalf * kRowBytes;
constexpr int kHiddenBoxes = kSlotBytes / (kHidden * kRowBytes), kQkvBoxes = kSlotBytes / (kQkv * kRowBytes);
constexpr int kMaxSlots = 18;
constexpr int kXSlots = 24;  // of one box each: for at least two slots of weights a group
static_assert(kXSlots >= 4 * kHiddenBoxes && std::max(kXSlots, kMaxSlots) <= kWarpSize);
static_assert(kDepth == 16 * kGroupWarps);  // a warp's part of a box
// Where the groups take turns, each has slots of its own: one that is ahead would take the end of the phase before
// the other's for the end of its own, since a barrier tells phases apart by their parity alone.
static_assert(kXSlots % (2 * kHiddenBoxes) == 0 && kXSlots % (2 * kQkvBoxes) == 0);
constexpr int kRowTile = 8, kRowTiles = kMaxDenseChainRows / kRowTile, kColumnTile = 16;  // of a tensor-core product
constexpr int kScaleThreads = 2 * kWarpSize;

enum Gemm { kOutput, kGateUp, kDown, kNextQkv, kGemms };

struct Args {
  int rows, cluster, gemms;
  int steps[kGemms];  // of kDepth in K
  int tiles[kGemms];  // blocks that have columns
  int hidden, ffn, qkv;
  const float* bias[kGemms];  // or null
  const float *norm, *next_norm;
  float eps;
  bf16 *residual_data, *hidden_data, *ffn_data, *qkv_data;
  int64_t residual_stride, hidden_stride, ffn_stride, qkv_stride;
  float* squares;     // [rows, tiles[kOutput]] shares of a row's sum of squares
  int32_t* counters;  // [kGemms] zero: arrivals before each GEMM but the first; blocks that are done
  int num_slots;      // even
  int x_bytes;
};

struct Maps {
  CUtensorMap x[kGemms], weight[kGemms];
};

// A place in a ring of slots, and in which parity the ring is there.
struct Turn {
  int slot, phase, size;
  __device__ Turn(int position, int slots) : slot(position % slots), phase(position / slots & 1), size(slots) {}
  __device__ void advance(int by) {
    slot += by;
    if (slot >= size) slot -= size, phase ^= 1;
  }
};

struct Rings {
  uint64_t full[kMaxSlots], free[kMaxSlots], x_full[kXSlots], x_free[kXSlots];
  uint64_t normed;  // all blocks have left their shares of the squares
};

// ---- kernels ----

__device__ __forceinline__ int boxes_per_slot(int gemm) {
  return gemm == kGateUp ? 1 : gemm == kNextQkv ? kQkvBoxes : kHiddenBoxes;
}
// Whole slots: past the end of K the copy engine delivers zeros.
__device__ __forceinline__ int padded_steps(const Args& a, int gemm) {
  return ceil_div(a.steps[gemm], boxes_per_slot(gemm)) * boxes_per_slot(gemm);
}
// A cluster's blocks work together, so that all do if the first of them has columns.
__device__ __forceinline__ bool takes_part(const Args& a, int gemm) {
  return static_cast<int>(blockIdx.x) / a.cluster * a.cluster < a.tiles[gemm];
}

// All blocks are done with the GEMM before this one, and what they wrote can be read.
__device__ __forceinline__ void wait_for_blocks(const Args& a, int gemm) {
  int arrived = 0;
  do {
    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];\n" : "=r"(arrived) : "l"(a.counters + gemm - 1) : "memory");
  } while (arrived < static_cast<int>(gridDim.x));
}

__device__ __forceinline__ void fetch_weights(const Args& a, const Maps& maps, Rings& rings, std::byte* slots) {
  const int tile = static_cast<int>(blockIdx.x);
  Turn turn(0, a.num_slots);
#pragma unroll 1
  for (int gemm = 0; gemm < a.gemms; ++gemm) {
    if (!takes_part(a, gemm)) continue;
    const CUtensorMap* map = &maps.weight[gemm];
    const int columns = gemm == kNextQkv ? kQkv : kHidden, boxes = boxes_per_slot(gemm);
    const int count = gemm == kGateUp ? 2 * a.steps[gemm] : padded_steps(a, gemm) / boxes;
#pragma unroll 1
    for (int i = 0; i < count; ++i) {
      uint64_t* full = &rings.full[turn.slot];
      barrier_wait(&rings.free[turn.slot], turn.phase ^ 1);
      barrier_arrive_expecting(full, kSlotBytes);
      std::byte* to = slots + turn.slot * kSlotBytes;
      if (gemm == kGateUp) {
        const int row = (2 * tile + i % 2) * kHalf;
        copy_box(to, map, i / 2 * kDepth, row, full);
        copy_box(to + kHalf * kRowBytes, map, i / 2 * kDepth, a.ffn + row, full);
      } else {
#pragma unroll 1
        for (int j = 0; j < boxes; ++j) {
          copy_box(to + j * columns * kRowBytes, map, (i * boxes + j) * kDepth, tile * columns, full);
        }
      }
      turn.advance(1);
    }
  }
}

__device__ __forceinline__ void fetch_x(const Args& a, const Maps& maps, Rings& rings, std::byte* x_slots) {
  const int rank = static_cast<int>(blockIdx.x) % a.cluster;
  Turn turn(0, kXSlots);
  wait_for_previous();
#pragma unroll 1
  for (int gemm = 0; gemm < a.gemms; ++gemm) {
    if (!takes_part(a, gemm)) continue;
    if (gemm > 0) wait_for_blocks(a, gemm);
    if (gemm == kGateUp || gemm == kNextQkv) barrier_arrive(&rings.normed);
    fence_async_proxy_global();
    int whose = 0;
    const int steps = padded_steps(a, gemm);
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
      barrier_wait(&rings.x_free[turn.slot], turn.phase ^ 1);
      barrier_arrive_expecting(&rings.x_full[turn.slot], a.x_bytes);
      std::byte* to = x_slots + turn.slot * a.x_bytes;
      if (a.cluster == 1) {
        copy_box(to, &maps.x[gemm], step * kDepth, 0, &rings.x_full[turn.slot]);
      } else if (whose == rank) {
        copy_box_to_all(to, &maps.x[gemm], step * kDepth, 0, &rings.x_full[turn.slot], a.cluster);
      }
      whose = whose + 1 == a.cluster ? 0 : whose + 1;
      turn.advance(1);
    }
  }
}

// 1 / root mean square of every row whose shares of squares the blocks have left.
__device__ __forceinline__ void sum_squares(const Args& a, float* scales) {
  const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize % 2;
  const int shares = a.tiles[kOutput];
#pragma unroll 2
  for (int row = warp; row < a.rows; row += 2) {
    float sum = 0.0F;
#pragma unroll 4
    for (int i = lane; i < shares; i += kWarpSize) sum += __ldcg(a.squares + row * shares + i);
    sum = warp_reduce<Sum>(sum);
    if (lane == 0) scales[row] = rsqrtf(sum / static_cast<float>(a.hidden) + a.eps);
  }
}

// kTiles * kColumnTile columns of the output by the rows of x, as the tensor cores leave them.
template <int kTiles>
using Products = float[kTiles][kRowTiles][4];

// Shares of such a sum, [warps, kRowTile, pitch]: rows of x by columns. The pitch spreads a warp's stores over all
// banks.
template <int kTiles>
constexpr int kPitch = kTiles* kColumnTile + 4;
template <int kTiles>
constexpr int kShareFloats = kRowTile* kPitch<kTiles>;
constexpr int kQkvTiles = kQkv / kColumnTile, kHalfTiles = 2 * kHalf / kColumnTile,
              kHiddenTiles = kHidden / kColumnTile;
// Gate's and up's rows come in one tile after the other, else all at once.
constexpr int kExchangeBytes =
    4 * kMultiplierWarps * std::max(kRowTiles * kShareFloats<kQkvTiles>, kShareFloats<kHalfTiles>);

// A warp's part in the GEMMs.
struct Multiplier {
  const Args& a;
  Rings& rings;
  uint32_t x_base, slots_base;
  float* exchange;
  int group, thread;
  int position = 0, x_position = 0;  // in the rings, where the GEMM begins

  // Of the eight that multiply.
  __device__ int warp() const { return group * kGroupWarps + thread / kWarpSize; }

  // d = the sum over this group's slots of the GEMM, every other one, and of their boxes over the warp's 16 of 64
  // elements of K; x_skip boxes of x are the other group's.
  template <int kTiles, int kBoxes>
  __device__ __forceinline__ void multiply(Products<kTiles>& d, int slots, Turn x_turn, int x_skip, int x_arrivals) {
    const int lane = threadIdx.x % kWarpSize, chunk = 2 * (thread / kWarpSize);
    const bool both = a.rows > kRowTile;
    // Where the lane's row of a matrix lies: four of them are columns by K, or K by rows of x.
    const int column = lane % 16, row = lane % 8 + (both ? lane / 16 * kRowTile : 0);
    const uint32_t weight_at = column * kRowBytes + ((chunk + lane / 16) ^ column % 8) * 16;
    const uint32_t x_at = row * kRowBytes + ((chunk + lane / 8 % 2) ^ row % 8) * 16;
    Turn turn(position + group, a.num_slots);
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
#pragma unroll
      for (int n = 0; n < kRowTiles; ++n) d[m][n][0] = d[m][n][1] = d[m][n][2] = d[m][n][3] = 0.0F;
    }
#pragma unroll 1
    for (int i = 0; i < slots; ++i) {
      const int first_x = x_turn.slot;
      const uint32_t weights = slots_base + turn.slot * kSlotBytes + weight_at;
      barrier_wait(&rings.full[turn.slot], turn.phase);
#pragma unroll
      for (int j = 0; j < kBoxes; ++j) {
        uint32_t x[4];
        barrier_wait(&rings.x_full[x_turn.slot], x_turn.phase);
        load_matrices(x, x_base + x_turn.slot * a.x_bytes + x_at);
        x_turn.advance(1);
#pragma unroll
        for (int m = 0; m < kTiles; ++m) {
          uint32_t weight[4];
          load_matrices(weight, weights + (j * kTiles + m) * kColumnTile * kRowBytes);
          mma<Bf16Math>(d[m][0], weight, x[0], x[1]);
          if (both) mma<Bf16Math>(d[m][1], weight, x[2], x[3]);
        }
      }
      x_turn.advance(x_skip);
      free<kBoxes>(turn.slot, first_x, x_arrivals);
      turn.advance(2);
    }
  }

  // The tile's columns over this group's share of K.
  template <int kColumns, int kBoxes>
  __device__ __forceinline__ void multiply_share(int padded, Products<kColumns / kColumnTile>& d) {
    const int slots = padded / kBoxes;
    multiply<kColumns / kColumnTile, kBoxes>(d, (slots + 1 - group) / 2, Turn(x_position + group * kBoxes, kXSlots),
                                             kBoxes, 2);
    position += slots;
    x_position += padded;
  }

  // Half the tile's columns over all of K: kHalf of gate, then as many of up.
  __device__ __forceinline__ void multiply_half(int steps, Products<kHalfTiles>& d) {
    multiply<kHalfTiles, 1>(d, steps, Turn(x_position, kXSlots), 0, 1);
    position += 2 * steps;
    x_position += steps;
  }

  template <int kTiles>
  __device__ __forceinline__ void leave(const Products<kTiles>& d, int row_tile, float* shares) const {
    const int lane = threadIdx.x % kWarpSize, column = lane / 4, row = 2 * (lane % 4);
    float* to = shares + warp() * kShareFloats<kTiles> + row * kPitch<kTiles> + column;
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float value = row_tile == 0 ? d[m][0][i] : d[m][1][i];
        to[i % 2 * kPitch<kTiles> + m * kColumnTile + i / 2 * 8] = value;
      }
    }
  }
  // Two columns of a row, over the shares of warps [first, first + count).
  template <int kTiles, int kCount>
  __device__ static __forceinline__ float2 sum(const float* shares, int first, int row, int column) {
    const float* from = shares + first * kShareFloats<kTiles> + row * kPitch<kTiles> + column;
    float2 total = make_float2(0.0F, 0.0F);
#pragma unroll
    for (int w = 0; w < kCount; ++w) {
      const float2 share = *reinterpret_cast<const float2*>(from + w * kShareFloats<kTiles>);
      total.x += share.x, total.y += share.y;
    }
    return total;
  }
  // Of all warps and all rows; afterwards the shares of row tile r begin at r * kMultiplierWarps * kShareFloats.
  template <int kTiles>
  __device__ __forceinline__ void leave_all(const Products<kTiles>& d) const {
    leave<kTiles>(d, 0, exchange);
    if (a.rows > kRowTile) leave<kTiles>(d, 1, exchange + kMultiplierWarps * kShareFloats<kTiles>);
    sync();
  }
  template <int kTiles>
  __device__ __forceinline__ float2 sum_of_all(int row, int column) const {
    return sum<kTiles, kMultiplierWarps>(exchange + row / kRowTile * kMultiplierWarps * kShareFloats<kTiles>, 0,
                                         row % kRowTile, column);
  }

  // What the warps wrote can be read by all blocks once they have waited for all.
  __device__ void arrive(int gemm) {
    sync();
    if (group == 0 && thread == 0)
      asm volatile("red.release.gpu.global.add.s32 [%0], 1;\n" ::"l"(a.counters + gemm) : "memory");
  }
  // Among both groups.
  __device__ void sync() const {
    sync_threads(1, kMultiplierThreads);
  }
  __device__ void sync_group() const {
    sync_threads(3 + group, kGroupThreads);
  }

 private:
  template <int kBoxes>
  __device__ __forceinline__ void free(int slot, int first_x, int x_arrivals) {
    const int lane = threadIdx.x % kWarpSize;
    __syncwarp();
    if (lane == 0) barrier_arrive(&rings.free[slot]);
    if (lane < kBoxes * a.cluster) {
      const int x = first_x + lane % kBoxes, x_slot = x < kXSlots ? x : x - kXSlots;
      if (a.cluster == 1) {
        barrier_arrive(&rings.x_free[x_slot], x_arrivals);
      } else {
        barrier_arrive_at(&rings.x_free[x_slot], lane / kBoxes, x_arrivals);
      }
    }
  }
};

// Of a bias or a norm's weight; zeros where there is none.
__device__ __forceinline__ float2 pair_of(const float* from, int column) {
  return from == nullptr ? make_float2(0.0F, 0.0F) : *reinterpret_cast<const float2*>(from + column);
}

// Two columns of a row of the residual are a thread's, and stay in its register from the first GEMM to the third.
struct ResidualPair {
  int row, column;  // within the tile
  bool there;
  uint32_t value = 0;
  __device__ ResidualPair(const Args& a, const Multiplier& m) {
    constexpr int kPairs = kHidden / 2;
    static_assert(kMultiplierThreads == kPairs * kMaxDenseChainRows);
    const int index = m.group * kGroupThreads + m.thread;
    row = index / kPairs, column = index % kPairs * 2;
    there = row < a.rows && first_column() < a.hidden;
    if (there) value = *at(a.residual_data, a.residual_stride);
  }
  __device__ int first_column() const { return static_cast<int>(blockIdx.x) * kHidden + column; }
  __device__ uint32_t* at(bf16* data, int64_t stride) const {
    return reinterpret_cast<uint32_t*>(data + row * stride + first_column());
  }
};

__device__ __forceinline__ void add_to_residual(const Args& a, Multiplier& m, int gemm, const float* norm,
                                                ResidualPair& residual) {
  Products<kHiddenTiles> d;
  float2 bias = make_float2(0.0F, 0.0F), w = bias;  // on their way while the GEMM runs
  if (residual.there) bias = pair_of(a.bias[gemm], residual.first_column()), w = pair_of(norm, residual.first_column());
  m.multiply_share<kHidden, kHiddenBoxes>(padded_steps(a, gemm), d);
  m.leave_all<kHiddenTiles>(d);
  float squares = 0.0F;
  if (residual.there) {
    const float2 sum = m.sum_of_all<kHiddenTiles>(residual.row, residual.column);
    const uint32_t branch = pack(sum.x + bias.x, sum.y + bias.y);
    uint32_t* to = residual.at(a.hidden_data, a.hidden_stride);
    if (norm == nullptr) {  // behind the last layer: whoever needs the row adds it
      *to = branch;
    } else {
      const float2 add = unpack(branch), before = unpack(residual.value);
      residual.value = pack(before.x + add.x, before.y + add.y);
      *residual.at(a.residual_data, a.residual_stride) = residual.value;
      const float2 now = unpack(residual.value);
      squares = now.x * now.x + now.y * now.y;
      *to = pack(now.x * w.x, now.y * w.y);
    }
  }
  if (norm == nullptr) return;
#pragma unroll
  for (int offset = kHidden / 4; offset > 0; offset >>= 1) squares += __shfl_xor_sync(kFullMask, squares, offset);
  const int tile = static_cast<int>(blockIdx.x);
  if (residual.column == 0 && residual.row < a.rows && tile < a.tiles[gemm])
    a.squares[residual.row * a.tiles[gemm] + tile] = squares;
}

__device__ __forceinline__ void gate_and_up(const Args& a, Multiplier& m, const float* scales) {
  constexpr int kPairs = kHalf / 2;
  Products<kHalfTiles> d;
  m.multiply_half(a.steps[kGateUp], d);
  sync_threads(2, kMultiplierThreads + kScaleThreads);
#pragma unroll 1
  for (int tile = 0; tile * kRowTile < a.rows; ++tile) {
    if (tile > 0) m.sync_group();
    m.leave<kHalfTiles>(d, tile, m.exchange);
    m.sync_group();
    const int rows = min(kRowTile, a.rows - tile * kRowTile);
#pragma unroll 1
    for (int i = m.thread; i < rows * kPairs; i += kGroupThreads) {
      const int local = i / kPairs, row = tile * kRowTile + local, pair = i % kPairs * 2;
      const int column = (2 * static_cast<int>(blockIdx.x) + m.group) * kHalf + pair;
      if (column >= a.ffn) continue;
      float2 gate = m.sum<kHalfTiles, kGroupWarps>(m.exchange, m.group * kGroupWarps, local, pair);
      float2 up = m.sum<kHalfTiles, kGroupWarps>(m.exchange, m.group * kGroupWarps, local, kHalf + pair);
      const float2 gate_bias = pair_of(a.bias[kGateUp], column), up_bias = pair_of(a.bias[kGateUp], a.ffn + column);
      const float scale = scales[row];
      gate.x = gate.x * scale + gate_bias.x, gate.y = gate.y * scale + gate_bias.y;
      up.x = up.x * scale + up_bias.x, up.y = up.y * scale + up_bias.y;
      *reinterpret_cast<uint32_t*>(a.ffn_data + row * a.ffn_stride + column) =
          pack(__fdividef(gate.x, 1.0F + __expf(-gate.x)) * up.x, __fdividef(gate.y, 1.0F + __expf(-gate.y)) * up.y);
    }
  }
}

__device__ __forceinline__ void next_qkv(const Args& a, Multiplier& m, const float* scales) {
  constexpr int kPairs = kQkv / 2;
  Products<kQkvTiles> d;
  m.multiply_share<kQkv, kQkvBoxes>(padded_steps(a, kNextQkv), d);
  m.leave_all<kQkvTiles>(d);
  sync_threads(2, kMultiplierThreads + kScaleThreads);
#pragma unroll 1
  for (int i = m.group * kGroupThreads + m.thread; i < a.rows * kPairs; i += kMultiplierThreads) {
    const int row = i / kPairs, pair = i % kPairs * 2, column = static_cast<int>(blockIdx.x) * kQkv + pair;
    if (column >= a.qkv) continue;
    const float2 sum = m.sum_of_all<kQkvTiles>(row, pair), bias = pair_of(a.bias[kNextQkv], column);
    *reinterpret_cast<uint32_t*>(a.qkv_data + row * a.qkv_stride + column) =
        pack(sum.x * scales[row] + bias.x, sum.y * scales[row] + bias.y);
  }
}

__device__ __forceinline__ void multiply_all(const Args& a, Multiplier& m,
                                             const float (&scales)[2][kMaxDenseChainRows]) {
  wait_for_previous();
  ResidualPair residual(a, m);
  // The same instructions twice: the second time they are at hand.
#pragma unroll 1
  for (int gemm = kOutput; gemm < a.gemms; gemm += 2) {
    if (takes_part(a, gemm)) add_to_residual(a, m, gemm, gemm == kOutput ? a.norm : a.next_norm, residual);
    if (gemm + 1 < a.gemms) m.arrive(gemm);
    if (gemm == kOutput) {
      if (takes_part(a, kGateUp)) gate_and_up(a, m, scales[0]);
      m.arrive(kGateUp);
    } else if (a.gemms > kNextQkv) {
      if (takes_part(a, kNextQkv)) next_qkv(a, m, scales[1]);
    }
  }
  if (m.group == 0 && m.thread == 0 && atomicAdd(&a.counters[kGemms - 1], 1) == static_cast<int>(gridDim.x) - 1) {
    for (int i = 0; i < kGemms; ++i) a.counters[i] = 0;  // all blocks are past all barriers
  }
}

__global__ void __launch_bounds__(kThreads, 1)
    dense_chain_kernel(const __grid_constant__ Args a, const __grid_constant__ Maps maps) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ std::byte unaligned[];
  __shared__ Rings rings;
  __shared__ float scales[2][kMaxDenseChainRows];  // of the first norm, of the next
  std::byte* x_slots = unaligned + (1024 - shared_address(unaligned) % 1024) % 1024;
  std::byte* slots = x_slots + kXSlots * a.x_bytes;
  const int thread = static_cast<int>(threadIdx.x);
  if (thread < a.num_slots) {
    barrier_init(&rings.full[thread], 1);
    barrier_init(&rings.free[thread], kGroupWarps);
  }
  if (thread < kXSlots) {
    barrier_init(&rings.x_full[thread], 1);
    barrier_init(&rings.x_free[thread], kMultiplierWarps * a.cluster);
  }
  if (thread == 0) barrier_init(&rings.normed, 1);
  if (thread < kWarpSize) barrier_init_done();
  if (thread >= kWarpSize && thread < kWarpSize + a.gemms) {
    prefetch_map(&maps.weight[thread - kWarpSize]);
    prefetch_map(&maps.x[thread - kWarpSize]);
  }
  __syncthreads();
  if (a.cluster > 1) cluster_sync();

  const int warp = threadIdx.x / kWarpSize;
  if (warp == 0) {
    if (threadIdx.x == 0) fetch_weights(a, maps, rings, slots);
  } else if (warp == 1) {
    if (threadIdx.x % kWarpSize == 0) fetch_x(a, maps, rings, x_slots);
  } else if (warp < 4) {
    int phase = 0;
    for (const int gemm : {kGateUp, kNextQkv}) {
      if (gemm >= a.gemms || !takes_part(a, gemm)) continue;
      barrier_wait(&rings.normed, phase);
      sum_squares(a, scales[gemm == kNextQkv ? 1 : 0]);
      phase ^= 1;
      sync_threads(2, kMultiplierThreads + kScaleThreads);
    }
  } else {
    // The same in all lanes, so that where the rings are is computed once a warp.
    const int group = __shfl_sync(kFullMask, thread / kGroupThreads - 1, 0);
    Multiplier m{.a = a,
                 .rings = rings,
                 .x_base = shared_address(x_slots),
                 .slots_base = shared_address(slots),
                 .exchange = reinterpret_cast<float*>(slots + a.num_slots * kSlotBytes),
                 .group = group,
                 .thread = thread % kGroupThreads};
    multiply_all(a, m, scales);
  }
  __syncthreads();
  if (a.cluster > 1) cluster_sync();  // nobody leaves while others write to its shared memory
#endif
}

}  // namespace

// ---- launcher ----

namespace {

int tiles_of(int64_t columns, int width) {
  return static_cast<int>(ceil_div(columns, int64_t{width}));
}

int num_blocks(const DenseChainParams& p) {
  const int64_t ffn = p.ffn.cols;
  int blocks = std::max(tiles_of(p.hidden.cols, kHidden), tiles_of(ffn, 2 * kHalf));
  if (p.next_qkv.weight != nullptr) blocks = std::max(blocks, tiles_of(p.qkv.cols, kQkv));
  return blocks;
}

// Blocks that share x: more rows are more of it.
int cluster_of(int64_t rows) {
  return rows <= 8 ? 1 : 2;
}

}  // namespace

bool serves_dense_chain(const Launch& launch, const DenseChainParams& p) {
  const auto fits = [](const Matrix& m) { return m.cols % 8 == 0 && m.stride % 8 == 0; };
  return launch.compute_capability == 90 && p.x.rows <= kMaxDenseChainRows && fits(p.x) && fits(p.residual) &&
         fits(p.hidden) && fits(p.ffn) && (p.next_qkv.weight == nullptr || fits(p.qkv)) &&
         num_blocks(p) <= launch.num_sms / 2 * 2;
}

void dense_chain(const Launch& launch, const DenseChainParams& p, const void* const (&weights)[4]) {
  Args a{};
  a.rows = static_cast<int>(p.x.rows);
  a.cluster = cluster_of(p.x.rows);
  a.gemms = p.next_qkv.weight != nullptr ? kGemms : kNextQkv;
  const Matrix* inputs[kGemms] = {&p.x, &p.hidden, &p.ffn, &p.hidden};
  const int64_t columns[kGemms] = {p.hidden.cols, 2 * p.ffn.cols, p.hidden.cols, p.qkv.cols};
  const int widths[kGemms] = {kHidden, kHalf, kHidden, kQkv};  // of a box
  const int box_rows = ceil_div(a.rows, 8) * 8;
  Maps maps{};
  for (int i = 0; i < a.gemms; ++i) {
    a.steps[i] = static_cast<int>(ceil_div(inputs[i]->cols, int64_t{kDepth}));
    a.tiles[i] = i == kGateUp ? tiles_of(p.ffn.cols, 2 * kHalf) : tiles_of(columns[i], widths[i]);
    maps.x[i] = make_tensor_map(inputs[i]->data, inputs[i]->rows, inputs[i]->cols, inputs[i]->stride, box_rows);
    maps.weight[i] = make_tensor_map(weights[i], columns[i], inputs[i]->cols, inputs[i]->cols, widths[i]);
  }
  a.hidden = static_cast<int>(p.hidden.cols);
  a.ffn = static_cast<int>(p.ffn.cols);
  a.qkv = static_cast<int>(p.qkv.cols);
  a.bias[kOutput] = p.output.bias, a.bias[kGateUp] = p.gate_up.bias, a.bias[kDown] = p.down.bias;
  a.bias[kNextQkv] = p.next_qkv.bias;
  a.norm = p.norm;
  a.next_norm = p.next_qkv.weight != nullptr ? p.next_norm : nullptr;
  a.eps = p.eps;
  a.residual_data = static_cast<bf16*>(p.residual.data), a.residual_stride = p.residual.stride;
  a.hidden_data = static_cast<bf16*>(p.hidden.data), a.hidden_stride = p.hidden.stride;
  a.ffn_data = static_cast<bf16*>(p.ffn.data), a.ffn_stride = p.ffn.stride;
  a.qkv_data = static_cast<bf16*>(p.qkv.data), a.qkv_stride = p.qkv.stride;
  a.squares = reinterpret_cast<float*>(launch.scratch);
  a.counters = launch.counters;
  a.x_bytes = box_rows * kRowBytes;
  const int fixed = 1024 + kXSlots * a.x_bytes + kExchangeBytes;
  a.num_slots = std::min(kMaxSlots, (launch.max_shared_bytes - fixed) / kSlotBytes) / 2 * 2;
  const int bytes = fixed + a.num_slots * kSlotBytes;

  check(cudaFuncSetAttribute(dense_chain_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), "dense_chain");
  run_in_clusters(launch, a.cluster, dense_chain_kernel, ceil_div(num_blocks(p), a.cluster) * a.cluster, kThreads,
                  static_cast<size_t>(bytes), a, maps);
}

}  // namespace zipage::cuda
