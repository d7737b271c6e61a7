// Linear layers of a few rows on Hopper, limited by how fast the weights are read: out [rows, N] = x [rows, K] * weight
// [N, K]^T; or, gated, of weights whose first half of N is the gate and whose second half is up: out = silu(gate) * up.
//
// A cluster of blocks (or one block) takes a tile of output columns; each block of it has a share of K, so x, too, is
// read in shares. One warp fetches through the tensor copy engine; a warpgroup for every 64 rows multiplies, and of up
// to 64 rows two take turns. At the end every block of the cluster adds up a share of the tile from the shared memories
// of all, in the order of the blocks. Weights do not depend on the kernel before this one: as many of their stages as
// shared memory holds are on their way before it has ended.
#include <algorithm>

#include "ops/cuda/gemm_hopper.h"
#include "ops/cuda/hopper.cuh"
#include "ops/cuda/launch.h"
#include "ops/cuda/tensor_map.h"

namespace zipage::cuda {
namespace {

// ---- numbers ----
constexpr int kGroupThreads = 128;  // of a warpgroup
constexpr int kGroupRows = 64;
constexpr int kDepth = 64;          // of K a stage holds: 128 bytes a row
constexpr int kGatedColumns = 192;  // of gate and up together
constexpr int kMaxStages = 40;
constexpr int kRowBytes = kDepth * 2;

template <int kColumns, int kGroups>
struct Shape {
  static constexpr int kWays = kGroups == 1 ? 2 : 1;  // warpgroups that share the steps of the same rows
  static constexpr int kThreads = (1 + kGroups * kWays) * kGroupThreads;
  static constexpr int kPitch = kColumns + 4;  // floats of a row of partial sums
  static constexpr int kPartialBytes = kWays * kGroups * kGroupRows * kPitch * 4;
};

struct Args {
  void* out;
  int64_t out_stride;
  const float* bias;                // or null
  int rows, columns, steps, split;  // steps of kDepth in K; blocks of a cluster
  int num_stages;                   // a multiple of kWays
  int x_bytes;                      // of a stage, for the rows that there are; the weights follow
  bool fp32_out;
  int second_half;  // gated: row of the weights where up begins
};

// Walks the stages, `by` at a time. Warpgroups that take turns never meet in a stage: one that is ahead would take the
// end of the phase before the other's for the end of its own, since a barrier tells phases apart by their parity alone.
struct Turn {
  int stage, phase;
  __device__ void advance(int by, int num_stages) {
    stage += by;
    if (stage >= num_stages) stage -= num_stages, phase ^= 1;
  }
};

// ---- kernels ----

template <int kColumns, int kGroups, bool kGated>
__global__ void __launch_bounds__(Shape<kColumns, kGroups>::kThreads, 1)
    gemm_kernel(const __grid_constant__ Args a, const __grid_constant__ CUtensorMap x_map,
                const __grid_constant__ CUtensorMap weight_map) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using S = Shape<kColumns, kGroups>;
  constexpr int kOut = kGated ? kColumns / 2 : kColumns;
  extern __shared__ std::byte unaligned[];
  __shared__ uint64_t full[kMaxStages], free[kMaxStages];
  std::byte* stages = unaligned + (1024 - shared_address(unaligned) % 1024) % 1024;
  const int rank = static_cast<int>(blockIdx.x) % a.split, tile = static_cast<int>(blockIdx.x) / a.split;
  const int begin = a.steps * rank / a.split, count = a.steps * (rank + 1) / a.split - begin;
  const int num_stages = a.num_stages, stage_bytes = a.x_bytes + kColumns * kRowBytes;

  if (threadIdx.x == 0) {
    prefetch_map(&weight_map);
    prefetch_map(&x_map);
    for (int i = 0; i < num_stages; ++i) {
      barrier_init(&full[i], 1);
      barrier_init(&free[i], kGroups);
    }
    barrier_init_done();
  }
  __syncthreads();

  float* partial = reinterpret_cast<float*>(stages);  // [kWays, rows, kPitch], once all stages have been used
  if (threadIdx.x < kGroupThreads) {
    if (threadIdx.x == 0) {
      const auto fetch_weight = [&](int step, int stage) {
        barrier_arrive_expecting(&full[stage], stage_bytes);
        std::byte* to = stages + stage * stage_bytes + a.x_bytes;
        copy_box(to, &weight_map, (begin + step) * kDepth, tile * kOut, &full[stage]);
        if constexpr (kGated) {
          copy_box(to + kOut * kRowBytes, &weight_map, (begin + step) * kDepth, a.second_half + tile * kOut,
                   &full[stage]);
        }
      };
      const auto fetch_x = [&](int step, int stage) {
        copy_box(stages + stage * stage_bytes, &x_map, (begin + step) * kDepth, 0, &full[stage]);
      };
      const int early = min(count, num_stages);
      for (int step = 0; step < early; ++step) fetch_weight(step, step);
      wait_for_previous();
      for (int step = 0; step < early; ++step) fetch_x(step, step);
      Turn turn{0, 1};
      for (int step = early; step < count; ++step) {
        barrier_wait(&free[turn.stage], turn.phase ^ 1);
        fetch_weight(step, turn.stage);
        fetch_x(step, turn.stage);
        turn.advance(1, num_stages);
      }
    }
  } else {
    const int thread = threadIdx.x % kGroupThreads, unit = threadIdx.x / kGroupThreads - 1;
    const int group = S::kWays > 1 ? 0 : unit, way = S::kWays > 1 ? unit : 0;
    float d[kColumns / 2] = {};
    const uint32_t base = shared_address(stages);
    Turn turn{way, 0};
    int previous = -1;
    for (int step = way; step < count; step += S::kWays) {
      barrier_wait(&full[turn.stage], turn.phase);
      // Past the rows that there are, the operand reads on into the weights: those rows of the product nobody stores.
      const uint32_t x = base + turn.stage * stage_bytes + group * kGroupRows * kRowBytes;
      const uint32_t weight = base + turn.stage * stage_bytes + a.x_bytes;
      product_begin();
#pragma unroll
      for (int k = 0; k < kDepth / 16; ++k) {
        product_ss(d, operand(x + k * 32, 16, 1024), operand(weight + k * 32, 16, 1024), previous >= 0 || k > 0);
      }
      product_commit();
      product_wait<1>();
      // The product before this one is done with its stage.
      if (previous >= 0 && thread == 0) barrier_arrive(&free[previous]);
      previous = turn.stage;
      turn.advance(S::kWays, num_stages);
    }
    product_wait<0>();
    pin(d);
    sync_threads(1, kGroups * S::kWays * kGroupThreads);  // all are done with the stages
    const int row = group * kGroupRows + thread / kWarpSize * 16 + thread % kWarpSize / 4, t = thread % 4;
    float* own = partial + way * kGroupRows * S::kPitch;
#pragma unroll
    for (int n = 0; n < kColumns / 8; ++n) {
      *reinterpret_cast<float2*>(own + row * S::kPitch + n * 8 + 2 * t) = make_float2(d[4 * n], d[4 * n + 1]);
      *reinterpret_cast<float2*>(own + (row + 8) * S::kPitch + n * 8 + 2 * t) = make_float2(d[4 * n + 2], d[4 * n + 3]);
    }
  }
  __syncthreads();
  if (a.split > 1) cluster_sync();

  // This block's share of the tile's columns, eight at a time.
  const int share = kOut / a.split, chunks = share / 8, first = rank * share;
  const auto add_up = [&](int row, int column, float(&v)[8]) {
    for (int r = 0; r < a.split; ++r) {
#pragma unroll
      for (int way = 0; way < S::kWays; ++way) {
        const uint32_t at = shared_address(partial + (way * kGroupRows + row) * S::kPitch + column);
        const uint32_t there = a.split > 1 ? cluster_address(at, r) : at;
        const float4 low = load_cluster(there), high = load_cluster(there + 16);
        v[0] += low.x, v[1] += low.y, v[2] += low.z, v[3] += low.w, v[4] += high.x, v[5] += high.y, v[6] += high.z,
            v[7] += high.w;
      }
    }
  };
  for (int i = threadIdx.x; i < a.rows * chunks; i += S::kThreads) {
    const int row = i / chunks, column = first + i % chunks * 8, global = tile * kOut + column;
    if (global >= a.columns) continue;
    float v[8] = {};
    add_up(row, column, v);
    if constexpr (kGated) {
      float up[8] = {};
      add_up(row, kOut + column, up);
#pragma unroll
      for (int e = 0; e < 8; ++e) v[e] = __fdividef(v[e], 1.0F + __expf(-v[e])) * up[e];
    }
    if (a.bias != nullptr) {
#pragma unroll
      for (int e = 0; e < 8; ++e) v[e] += a.bias[global + e];
    }
    if (a.fp32_out) {
      auto* to = reinterpret_cast<float4*>(static_cast<float*>(a.out) + row * a.out_stride + global);
      to[0] = make_float4(v[0], v[1], v[2], v[3]), to[1] = make_float4(v[4], v[5], v[6], v[7]);
    } else {
      *reinterpret_cast<uint4*>(static_cast<bf16*>(a.out) + row * a.out_stride + global) = pack8(v);
    }
  }
  if (a.split > 1) cluster_sync();  // nobody leaves while others read its shared memory
#endif
}

// ---- launcher ----

template <int kColumns, int kGroups, bool kGated>
void launch_gemm(const Launch& launch, Args a, const Matrix& x, const void* weight) {
  using S = Shape<kColumns, kGroups>;
  constexpr int kOut = kGated ? kColumns / 2 : kColumns;
  // Rows that are not there would cost the copy engine more than rows that are.
  const int box_rows = ceil_div(a.rows, 8) * 8;
  a.x_bytes = box_rows * kRowBytes;
  const int stage_bytes = a.x_bytes + kColumns * kRowBytes;
  // The last stage's operand reaches over the rows that there could be.
  const int behind = std::max(kGroups * kGroupRows * kRowBytes - stage_bytes, 0);
  const int stages = std::min(kMaxStages, (launch.max_shared_bytes - behind - 1024) / stage_bytes);
  a.num_stages = stages / S::kWays * S::kWays;
  const int bytes = std::max(a.num_stages * stage_bytes + behind, S::kPartialBytes) + 1024;
  const CUtensorMap x_map = make_tensor_map(x.data, x.rows, x.cols, x.stride, box_rows);
  const CUtensorMap weight_map = make_tensor_map(weight, kGated ? 2 * a.columns : a.columns, x.cols, x.cols, kOut);
  check(
      cudaFuncSetAttribute(gemm_kernel<kColumns, kGroups, kGated>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
      "linear");
  run_in_clusters(launch, a.split, gemm_kernel<kColumns, kGroups, kGated>, ceil_div(a.columns, kOut) * a.split,
                  S::kThreads, static_cast<size_t>(bytes), a, x_map, weight_map);
}

template <int kColumns, bool kGated = false>
void launch_groups(const Launch& launch, const Args& a, const Matrix& x, const void* weight) {
  if (x.rows <= kGroupRows) {
    launch_gemm<kColumns, 1, kGated>(launch, a, x, weight);
  } else {
    launch_gemm<kColumns, 2, kGated>(launch, a, x, weight);
  }
}

Args make_args(const Matrix& x, const Matrix& out, int split) {
  return {.out = out.data,
          .out_stride = out.stride,
          .rows = static_cast<int>(x.rows),
          .columns = static_cast<int>(out.cols),
          .steps = static_cast<int>(ceil_div(x.cols, int64_t{kDepth})),
          .split = split,
          .fp32_out = out.dtype == DType::kF32};
}

}  // namespace

std::vector<GemmPlan> gemm_hopper_plans(const Launch& launch, int64_t rows, int64_t in, int64_t out, int64_t x_stride,
                                        int64_t out_stride) {
  std::vector<GemmPlan> plans;
  if (launch.compute_capability != 90 || rows > 2 * kGroupRows || in % 8 != 0 || out % 8 != 0 || x_stride % 8 != 0 ||
      out_stride % 8 != 0) {
    return plans;
  }
  for (const int columns : {32, 48, 64, 128, 192}) {
    for (const int split : {1, 2, 4, 8}) {
      const int64_t blocks = ceil_div(out, int64_t{columns}) * split;
      // All blocks at once, most multiprocessors in use, and K enough for a pipeline in every block.
      if (blocks > launch.num_sms || blocks * 10 < launch.num_sms * 6 || in / kDepth / split < 4 ||
          columns / split % 8 != 0)
        continue;
      plans.push_back({columns, split});
    }
  }
  return plans;
}

void gemm_hopper(const Launch& launch, const GemmPlan& plan, const Matrix& x, const void* weight, const float* bias,
                 const Matrix& out) {
  Args a = make_args(x, out, plan.split);
  a.bias = bias;
  switch (plan.columns) {
    case 32:
      return launch_groups<32>(launch, a, x, weight);
    case 48:
      return launch_groups<48>(launch, a, x, weight);
    case 64:
      return launch_groups<64>(launch, a, x, weight);
    case 128:
      return launch_groups<128>(launch, a, x, weight);
    default:
      return launch_groups<192>(launch, a, x, weight);
  }
}

bool serves_gemm_hopper_gated(const Launch& launch, const Matrix& x, const Matrix& out) {
  const int64_t blocks = ceil_div(out.cols, int64_t{kGatedColumns} / 2);
  return launch.compute_capability == 90 && x.rows <= 2 * kGroupRows && x.cols % 8 == 0 && x.stride % 8 == 0 &&
         out.cols % 8 == 0 && out.stride % 8 == 0 && out.dtype == DType::kBF16 && blocks <= launch.num_sms &&
         blocks * 10 >= launch.num_sms * 6;
}

void gemm_hopper_gated(const Launch& launch, const Matrix& x, const void* weight, const Matrix& out) {
  Args a = make_args(x, out, 1);
  a.second_half = static_cast<int>(out.cols);
  launch_groups<kGatedColumns, true>(launch, a, x, weight);
}

}  // namespace zipage::cuda
