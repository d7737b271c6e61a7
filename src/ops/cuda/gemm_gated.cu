// Gate, up and SiLU of many rows on Hopper, limited by the tensor cores: out = silu(gate) * up with gate and up = x
// [rows, K] * weight [2 N, K]^T, which themselves are never written.
//
// Blocks stay and take tiles in turn. One warp of a block fetches through the tensor copy engine, two warpgroups
// multiply: half of a tile's columns is the gate's, half up's, so that a thread has both. The two blocks of a cluster
// have tiles side by side and share what these have in common: weights of a tile of 128 rows, x of a tile of 256; each
// fetches half of it for both. A stage is free as soon as its products are done: the other warpgroup's keep the tensor
// cores busy meanwhile. The next tile's first stages arrive while this one is stored.
#include <algorithm>

#include "ops/cuda/gemm_gated.h"
#include "ops/cuda/hopper.cuh"
#include "ops/cuda/launch.h"
#include "ops/cuda/tensor_map.h"

// Compiled for other machines, the kernel is empty and what it calls has no caller.
#pragma nv_diag_suppress 177

namespace zipage::cuda {
namespace {

// ---- numbers ----
constexpr int kCluster = 2;
constexpr int kConsumers = 2;       // warpgroups
constexpr int kGroupThreads = 128;  // of a warpgroup
constexpr int kThreads = (1 + kConsumers) * kGroupThreads;
constexpr int kGroupRows = 64;  // of a product
constexpr int kDepth = 64;      // of K a stage holds: 128 bytes a row
constexpr int kRowBytes = kDepth * 2;
constexpr int kPairsTogether = 8;  // pairs of tiles of rows that are worked on at a time, so that x stays near
constexpr int kStored = 64;        // columns that are staged at a time on their way out
constexpr int kStoredPitch = kStored * 2 + 16;  // bytes
constexpr int kStoredBytes = kGroupRows * kStoredPitch;
constexpr int kMaxStages = 4;
constexpr int kTallRows = 256;                   // in one tile of rows
constexpr int kSharedBytes = 227 * 1024 - 1280;  // the rest is for what is declared

// Of kColumns columns of gate and up together; a warpgroup has kTall products of 64 rows, one below the other.
template <int kColumns, int kTall>
struct Shape {
  static constexpr int kOut = kColumns / 2;
  static constexpr int kRows = kConsumers * kTall * kGroupRows;
  static constexpr bool kSharesX = kTall > 1;
  static constexpr int kXBytes = kRows * kRowBytes, kWeightBytes = kColumns * kRowBytes;
  static constexpr int kStageBytes = kXBytes + kWeightBytes;
  // Columns on their way out lie where the warpgroup's x of the last stage was, if that is large enough.
  static constexpr bool kStoredInX = kTall * kGroupRows * kRowBytes >= kStoredBytes;
  static constexpr int kFixedBytes = (kStoredInX ? 0 : kConsumers * kStoredBytes) + 1024;
  static constexpr int kStages = std::min(kMaxStages, (kSharedBytes - kFixedBytes) / kStageBytes);
};

struct Args {
  bf16* out;
  int64_t out_stride;
  int rows, columns;            // of out
  int steps;                    // of kDepth in K
  int row_tiles, column_tiles;  // of a cluster
};

struct Tile {
  int row, column;
};

// ---- kernels ----

// The tile of this block in the cluster's `index`-th pair.
template <bool kSharesX>
__device__ __forceinline__ Tile tile_at(const Args& a, int index) {
  const int rank = static_cast<int>(blockIdx.x) % kCluster, together = kPairsTogether * a.column_tiles;
  const int first = index / together * kPairsTogether, rows = min(a.row_tiles - first, kPairsTogether);
  const Tile pair{first + index % together % rows, index % together / rows};
  return kSharesX ? Tile{pair.row, pair.column * kCluster + rank} : Tile{pair.row * kCluster + rank, pair.column};
}

__device__ __forceinline__ void store_matrices(uint32_t address, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};\n" ::"r"(address), "r"(a), "r"(b),
               "r"(c), "r"(d)
               : "memory");
}

__device__ __forceinline__ float silu(float gate, float up) {
  return __fdividef(gate, 1.0F + __expf(-gate)) * up;
}

// 64 rows of the tile: through shared memory, so that a row's columns leave together.
template <int kColumns>
__device__ __forceinline__ void store(const Args& a, const float (&d)[kColumns / 2], int first_row, int first_column,
                                      std::byte* stored, int group) {
  constexpr int kOut = kColumns / 2, kUp = kColumns / 4;  // where up begins in d
  const int thread = threadIdx.x % kGroupThreads, lane = thread % kWarpSize, warp = thread / kWarpSize;
  const auto pair = [&](int i) {  // two columns of a row
    return pack(silu(d[i], d[i + kUp]), silu(d[i + 1], d[i + 1 + kUp]));
  };
  const uint32_t to = shared_address(stored) + (warp * 16 + lane % 16) * kStoredPitch + lane / 16 * 16;
#pragma unroll
  for (int first = 0; first < kOut; first += kStored) {
    constexpr int kWhole = kStored / 8;
    const int eights = kOut - first < kStored ? (kOut - first) / 8 : kWhole;
#pragma unroll
    for (int n = 0; n < kWhole; n += 2) {
      if (n >= eights) break;
      const int i = (first / 8 + n) * 4;
      store_matrices(to + n * 16, pair(i), pair(i + 2), pair(i + 4), pair(i + 6));
    }
    sync_threads(1 + group, kGroupThreads);
    for (int c = thread; c < kGroupRows * eights; c += kGroupThreads) {
      const int row = c / eights, column = first_column + first + c % eights * 8;
      if (first_row + row < a.rows && column < a.columns) {
        *reinterpret_cast<uint4*>(a.out + int64_t{first_row + row} * a.out_stride + column) =
            *reinterpret_cast<const uint4*>(stored + row * kStoredPitch + c % eights * 16);
      }
    }
    sync_threads(1 + group, kGroupThreads);
  }
}

// Gives a stage back, by a warpgroup.
__device__ __forceinline__ void release(uint64_t* free, int stage) {
  const int thread = threadIdx.x % kGroupThreads;
  if (thread < kCluster) barrier_arrive_at(&free[stage], thread, 1);
}

// The first kProducts of a warpgroup's products, over all of K. Returns the last stage, which the caller gives back.
template <int kProducts, typename S, int kTall, int kCount>
__device__ __forceinline__ int multiply(const Args& a, float (&d)[kTall][kCount], uint32_t stages, int group,
                                        uint64_t* full, uint64_t* free, Turn& turn) {
  int stage = 0;
#pragma unroll 1
  for (int step = 0; step < a.steps; ++step) {
    if (step > 0) release(free, stage);
    stage = turn.stage;
    barrier_wait(&full[stage], turn.phase);
    const uint32_t x = stages + stage * S::kStageBytes + group * kTall * kGroupRows * kRowBytes;
    const uint32_t weight = stages + stage * S::kStageBytes + S::kXBytes;
    product_begin();
#pragma unroll
    for (int k = 0; k < kDepth / 16; ++k) {
#pragma unroll
      for (int h = 0; h < kProducts; ++h) {
        product_ss(d[h], operand(x + h * kGroupRows * kRowBytes + k * 32, 16, 1024), operand(weight + k * 32, 16, 1024),
                   step > 0 || k > 0);
      }
    }
    product_commit();
    product_wait<0>();
    turn.advance(S::kStages);
  }
#pragma unroll
  for (int h = 0; h < kProducts; ++h) pin(d[h]);
  return stage;
}

template <int kColumns, int kTall>
__global__ void __launch_bounds__(kThreads, 1)
    gemm_gated_kernel(const __grid_constant__ Args a, const __grid_constant__ CUtensorMap x_map,
                      const __grid_constant__ CUtensorMap weight_map) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using S = Shape<kColumns, kTall>;
  extern __shared__ std::byte unaligned[];
  __shared__ uint64_t full[S::kStages], free[S::kStages];
  std::byte* stages = unaligned + (1024 - shared_address(unaligned) % 1024) % 1024;
  std::byte* stored = stages + S::kStages * S::kStageBytes;
  const int rank = static_cast<int>(blockIdx.x) % kCluster, clusters = static_cast<int>(gridDim.x) / kCluster;
  const int first = static_cast<int>(blockIdx.x) / kCluster, count = a.row_tiles * a.column_tiles;
  if (threadIdx.x == 0) {
    prefetch_map(&weight_map);
    prefetch_map(&x_map);
    for (int i = 0; i < S::kStages; ++i) {
      barrier_init(&full[i], 1);
      barrier_init(&free[i], kCluster * kConsumers);
    }
    barrier_init_done();
  }
  __syncthreads();
  cluster_sync();
  wait_for_previous();

  if (threadIdx.x < kGroupThreads) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;\n");
    if (threadIdx.x == 0) {
      Turn turn;
#pragma unroll 1
      for (int index = first; index < count; index += clusters) {
        const Tile tile = tile_at<S::kSharesX>(a, index);
        const int row = tile.row * S::kRows, column = tile.column * S::kOut;
        const int up = a.columns + column;  // row of the weights
#pragma unroll 1
        for (int step = 0; step < a.steps; ++step) {
          uint64_t* barrier = &full[turn.stage];
          std::byte* x = stages + turn.stage * S::kStageBytes;
          std::byte* weight = x + S::kXBytes;
          barrier_wait(&free[turn.stage], turn.phase ^ 1);
          barrier_arrive_expecting(barrier, S::kStageBytes);
          if constexpr (S::kSharesX) {
            copy_box_to_all(x + rank * (S::kXBytes / kCluster), &x_map, step * kDepth, row + rank * S::kRows / kCluster,
                            barrier, kCluster);
            copy_box(weight, &weight_map, step * kDepth, column, barrier);
            copy_box(weight + S::kWeightBytes / 2, &weight_map, step * kDepth, up, barrier);
          } else {
            copy_box(x, &x_map, step * kDepth, row, barrier);
            copy_box_to_all(weight + rank * (S::kWeightBytes / kCluster), &weight_map, step * kDepth,
                            rank == 0 ? column : up, barrier, kCluster);
          }
          turn.advance(S::kStages);
        }
      }
    }
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;\n");
    const int group = threadIdx.x / kGroupThreads - 1;
    Turn turn;
#pragma unroll 1
    for (int index = first; index < count; index += clusters) {
      const Tile tile = tile_at<S::kSharesX>(a, index);
      const int first_row = tile.row * S::kRows + group * kTall * kGroupRows;
      float d[kTall][kColumns / 2];
      const bool few = kTall > 1 && first_row + kGroupRows >= a.rows;  // there are no rows for the other products
      const int last = few ? multiply<1, S>(a, d, shared_address(stages), group, full, free, turn)
                           : multiply<kTall, S>(a, d, shared_address(stages), group, full, free, turn);
      if constexpr (!S::kStoredInX) release(free, last);
      std::byte* out = S::kStoredInX ? stages + last * S::kStageBytes + group * kTall * kGroupRows * kRowBytes
                                     : stored + group * kStoredBytes;
      if constexpr (S::kStoredInX) sync_threads(1 + group, kGroupThreads);  // all its warps have read x
#pragma unroll
      for (int h = 0; h < kTall; ++h) {
        store<kColumns>(a, d[h], first_row + h * kGroupRows, tile.column * S::kOut, out, group);
      }
      if constexpr (S::kStoredInX) {
        fence_async_proxy();  // the copy engine writes there next
        sync_threads(1 + group, kGroupThreads);
        release(free, last);
      }
    }
  }
  __syncthreads();
  cluster_sync();  // nobody leaves while the other arrives at its barriers
#endif
}

// ---- launcher ----

template <int kColumns, int kTall>
void launch_gated(const Launch& launch, const Matrix& x, const void* weight, const Matrix& out) {
  using S = Shape<kColumns, kTall>;
  const auto tiles = [](int64_t size, int tile) { return static_cast<int>(ceil_div(size, int64_t{tile})); };
  const Args a{.out = static_cast<bf16*>(out.data),
               .out_stride = out.stride,
               .rows = static_cast<int>(out.rows),
               .columns = static_cast<int>(out.cols),
               .steps = tiles(x.cols, kDepth),
               .row_tiles = tiles(out.rows, S::kRows * (S::kSharesX ? 1 : kCluster)),
               .column_tiles = tiles(out.cols, S::kOut * (S::kSharesX ? kCluster : 1))};
  const CUtensorMap x_map = make_tensor_map(x.data, x.rows, x.cols, x.stride, S::kSharesX ? S::kRows / 2 : S::kRows);
  const CUtensorMap weight_map = make_tensor_map(weight, 2 * out.cols, x.cols, x.cols, S::kOut);
  const int bytes = S::kStages * S::kStageBytes + S::kFixedBytes;
  check(cudaFuncSetAttribute(gemm_gated_kernel<kColumns, kTall>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
        "linear");
  const int clusters = std::min(launch.num_sms / kCluster, a.row_tiles * a.column_tiles);
  run_in_clusters(launch, kCluster, gemm_gated_kernel<kColumns, kTall>, clusters * kCluster, kThreads,
                  static_cast<size_t>(bytes), a, x_map, weight_map);
}

}  // namespace

bool serves_gemm_gated(const Launch& launch, const Matrix& x, const Matrix& out) {
  const bool rows = (x.rows > 128 && x.rows <= kTallRows) || x.rows >= 512;
  return rows && launch.compute_capability == 90 && x.cols % 8 == 0 && x.stride % 8 == 0 && out.cols % 8 == 0 &&
         out.stride % 8 == 0 && out.dtype == DType::kBF16;
}

void gemm_gated(const Launch& launch, const Matrix& x, const void* weight, const Matrix& out) {
  if (x.rows <= kTallRows) {
    launch_gated<192, 2>(launch, x, weight, out);
  } else {
    launch_gated<256, 1>(launch, x, weight, out);
  }
}

}  // namespace zipage::cuda
