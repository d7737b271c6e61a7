// Linear layers of a few rows on Hopper, limited by how fast the weights are read: out [rows, N] = x [rows, K] * weight
// [N, K]^T; or, gated, of weights whose first half of N is the gate and whose second half is up: out = silu(gate) * up.
//
// A cluster of blocks (or one block) takes a tile of output columns; each block of it has a share of K, so x, too, is
// read in shares. One warp fetches through the tensor copy engine; a warpgroup for every 64 rows multiplies, and of up
// to 64 rows two take turns. At the end every block of the cluster adds up a share of the tile from the shared memories
// of all, in the order of the blocks.
//
// Weights do not depend on the kernel before this one: as many of their stages as shared memory holds are on their way
// before it has ended.
//
// No kernel is needed for an RMS norm between two layers: the first one's blocks add the residual, leave the row times
// the norm's weight, and their share of the row's squares; the second one's outputs take the row's factor, which is
// linear. A bf16 number times a factor is rounded as well before as behind it.
#include <algorithm>
#include <bit>

#include "ops/cuda/gemm_hopper.h"
#include "ops/cuda/hopper.cuh"
#include "ops/cuda/launch.h"
#include "ops/cuda/tensor_map.h"

// Compiled for other machines, the kernel is empty and what it calls has no caller.
#pragma nv_diag_suppress 177

namespace zipage::cuda {
namespace {

// ---- numbers ----
constexpr int kGroupThreads = 128;  // of a warpgroup
constexpr int kGroupRows = 64;
constexpr int kDepth = 64;          // of K a stage holds: 128 bytes a row
constexpr int kGatedColumns = 192;  // of gate and up together
constexpr int kMaxStages = 40;
constexpr int kRowBytes = kDepth * 2;
constexpr int kPartsTogether = 16;  // loads of squares under way

template <int kColumns, int kGroups>
struct Shape {
  static constexpr int kWays = kGroups == 1 ? 2 : 1;  // warpgroups that share the steps of the same rows
  static constexpr int kMultipliers = kGroups * kWays * kGroupThreads;
  static constexpr int kThreads = kMultipliers + 2 * kWarpSize;
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
  // Of a norm in front: its squares (null: none) and what they are divided by.
  const float* squares;
  int square_parts, hidden;
  float eps;
  // Of a norm behind.
  bf16* residual;  // null: none
  int64_t residual_stride;
  const float* norm;
  float* out_squares;
};

// ---- kernels ----

// Each row's factor from the squares that the blocks of the layer before left, by one warp: [parts, kMaxGemmRows].
__device__ void row_factors(const Args& a, float* factors) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  constexpr int kQuads = kMaxGemmRows / 4;  // of rows
  static_assert(kQuads == kWarpSize);
  const int quads = ceil_div(a.rows, 4);
  if (lane >= quads) return;
  float4 sum = make_float4(0.0F, 0.0F, 0.0F, 0.0F);
  const float4* from = reinterpret_cast<const float4*>(a.squares) + lane;
  for (int first = 0; first < a.square_parts; first += kPartsTogether) {
    float4 part[kPartsTogether];
#pragma unroll
    for (int i = 0; i < kPartsTogether; ++i) {
      part[i] = first + i < a.square_parts ? __ldcg(from + (first + i) * kQuads) : make_float4(0.0F, 0.0F, 0.0F, 0.0F);
    }
#pragma unroll
    for (int i = 0; i < kPartsTogether; ++i) {
      sum.x += part[i].x, sum.y += part[i].y, sum.z += part[i].z, sum.w += part[i].w;
    }
  }
  const float count = static_cast<float>(a.hidden);
  reinterpret_cast<float4*>(factors)[lane] = make_float4(rsqrtf(sum.x / count + a.eps), rsqrtf(sum.y / count + a.eps),
                                                         rsqrtf(sum.z / count + a.eps), rsqrtf(sum.w / count + a.eps));
}

// What eight columns of a row need where a norm follows, fetched ahead.
struct BeforeNorm {
  uint4 residual;
  float4 low, high;  // the norm's weight
};
__device__ __forceinline__ BeforeNorm load_before_norm(const Args& a, int row, int column) {
  const auto* weight = reinterpret_cast<const float4*>(a.norm + column);
  return {__ldcg(reinterpret_cast<const uint4*>(a.residual + row * a.residual_stride + column)), weight[0], weight[1]};
}

// Writes the new residual and leaves in v what the layer behind the norm reads. Returns the sum of the squares.
__device__ __forceinline__ float add_residual(const Args& a, const BeforeNorm& b, int row, int column, float (&v)[8]) {
  float before[8];
  unpack8(pack8(v), v);
  unpack8(b.residual, before);
#pragma unroll
  for (int e = 0; e < 8; ++e) v[e] += before[e];
  const uint4 rounded = pack8(v);
  *reinterpret_cast<uint4*>(a.residual + row * a.residual_stride + column) = rounded;
  unpack8(rounded, v);
  float squares = 0.0F;
#pragma unroll
  for (int e = 0; e < 8; ++e) squares += v[e] * v[e];
  v[0] *= b.low.x, v[1] *= b.low.y, v[2] *= b.low.z, v[3] *= b.low.w;
  v[4] *= b.high.x, v[5] *= b.high.y, v[6] *= b.high.z, v[7] *= b.high.w;
  return squares;
}

template <int kColumns, int kGroups, bool kGated>
__global__ void __launch_bounds__(Shape<kColumns, kGroups>::kThreads, 1)
    gemm_kernel(const __grid_constant__ Args a, const __grid_constant__ CUtensorMap x_map,
                const __grid_constant__ CUtensorMap weight_map) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using S = Shape<kColumns, kGroups>;
  constexpr int kOut = kGated ? kColumns / 2 : kColumns;
  extern __shared__ std::byte unaligned[];
  __shared__ uint64_t full[kMaxStages], free[kMaxStages];
  __shared__ __align__(16) float factors[kMaxGemmRows];
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

  // This block's share of the tile's columns, eight at a time, by whole warps: where a norm follows, the threads of a
  // row, a power of two, add up its squares. Those that multiply fetch what they need for that before they begin.
  const int share = kOut / a.split, chunks = share / 8, first = rank * share;
  const bool norm_follows = !kGated && a.residual != nullptr;
  const auto before_norm = [&](int item) -> BeforeNorm {
    const int row = item / chunks, column = tile * kOut + first + item % chunks * 8;
    if (!norm_follows || row >= a.rows || column >= a.columns) return {};
    return load_before_norm(a, row, column);
  };
  BeforeNorm before{};
  if (norm_follows && threadIdx.x < S::kMultipliers) {
    wait_till_previous_ended();
    before = before_norm(threadIdx.x);
  }

  float* partial = reinterpret_cast<float*>(stages);  // [kWays, rows, kPitch], once all stages have been used
  if (threadIdx.x == S::kMultipliers) {
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
      turn.advance(num_stages, 1);
    }
  } else if (threadIdx.x >= S::kMultipliers + kWarpSize) {
    if (a.squares != nullptr) {
      wait_till_previous_ended();
      row_factors(a, factors);
    }
  } else if (threadIdx.x < S::kMultipliers) {
    const int thread = threadIdx.x % kGroupThreads, unit = threadIdx.x / kGroupThreads;
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
      turn.advance(num_stages, S::kWays);
    }
    product_wait<0>();
    pin(d);
    sync_threads(1, S::kMultipliers);  // all are done with the stages
    const int row = group * kGroupRows + thread / kWarpSize * 16 + thread % kWarpSize / 4, t = thread % 4;
    float* own = partial + way * kGroupRows * S::kPitch;
#pragma unroll
    for (int n = 0; n < kColumns / 8; ++n) {
      *reinterpret_cast<float2*>(own + row * S::kPitch + n * 8 + 2 * t) = make_float2(d[4 * n], d[4 * n + 1]);
      *reinterpret_cast<float2*>(own + (row + 8) * S::kPitch + n * 8 + 2 * t) = make_float2(d[4 * n + 2], d[4 * n + 3]);
    }
  }
  __syncthreads();

  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  if (threadIdx.x >= S::kMultipliers) before = before_norm(threadIdx.x);
  if (a.split > 1) cluster_sync();

  const auto add_up = [&](int row, int column, float(&v)[8]) {
    for (int r = 0; r < a.split; ++r) {
#pragma unroll
      for (int way = 0; way < S::kWays; ++way) {
        const float* at = partial + (way * kGroupRows + row) * S::kPitch + column;
        float4 low, high;
        if (r == rank) {
          low = reinterpret_cast<const float4*>(at)[0], high = reinterpret_cast<const float4*>(at)[1];
        } else {
          const uint32_t there = cluster_address(shared_address(at), r);
          low = load_cluster(there), high = load_cluster(there + 16);
        }
        v[0] += low.x, v[1] += low.y, v[2] += low.z, v[3] += low.w, v[4] += high.x, v[5] += high.y, v[6] += high.z,
            v[7] += high.w;
      }
    }
    if (a.squares != nullptr) {
#pragma unroll
      for (int e = 0; e < 8; ++e) v[e] *= factors[row];
    }
  };
  for (int base = static_cast<int>(threadIdx.x) - lane; base < a.rows * chunks; base += S::kThreads) {
    const int row = (base + lane) / chunks, column = first + (base + lane) % chunks * 8, global = tile * kOut + column;
    const bool stores = row < a.rows && global < a.columns;
    float v[8] = {}, squares = 0.0F;
    if (stores) {
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
      if (norm_follows) squares = add_residual(a, before, row, global, v);
      if (a.fp32_out) {
        auto* to = reinterpret_cast<float4*>(static_cast<float*>(a.out) + row * a.out_stride + global);
        to[0] = make_float4(v[0], v[1], v[2], v[3]), to[1] = make_float4(v[4], v[5], v[6], v[7]);
      } else {
        *reinterpret_cast<uint4*>(static_cast<bf16*>(a.out) + row * a.out_stride + global) = pack8(v);
      }
    }
    if (norm_follows) {
      before = before_norm(base + lane + S::kThreads);
      for (int offset = chunks / 2; offset > 0; offset /= 2) squares += __shfl_xor_sync(kFullMask, squares, offset);
      if (row < a.rows && lane % chunks == 0) a.out_squares[int64_t{blockIdx.x} * kMaxGemmRows + row] = squares;
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

Args make_args(const Matrix& x, const Matrix& out, int split, const NormInFront& front) {
  return {.out = out.data,
          .out_stride = out.stride,
          .rows = static_cast<int>(x.rows),
          .columns = static_cast<int>(out.cols),
          .steps = static_cast<int>(ceil_div(x.cols, int64_t{kDepth})),
          .split = split,
          .fp32_out = out.dtype == DType::kF32,
          .squares = front.squares,
          .square_parts = front.parts,
          .hidden = static_cast<int>(x.cols),
          .eps = front.eps};
}

}  // namespace

int gemm_hopper_parts(const GemmPlan& plan, int64_t out) {
  return static_cast<int>(ceil_div(out, int64_t{plan.columns})) * plan.split;
}

std::vector<GemmPlan> gemm_hopper_plans(const Launch& launch, int64_t rows, int64_t in, int64_t out, int64_t x_stride,
                                        int64_t out_stride) {
  std::vector<GemmPlan> plans;
  if (launch.compute_capability != 90 || rows > kMaxGemmRows || in % 8 != 0 || out % 8 != 0 || x_stride % 8 != 0 ||
      out_stride % 8 != 0) {
    return plans;
  }
  for (const int columns : {32, 48, 64, 128, 192}) {
    for (const int split : {1, 2, 4, 8}) {
      const GemmPlan plan{columns, split};
      const int blocks = gemm_hopper_parts(plan, out);
      // All blocks at once, most multiprocessors in use, and K enough for a pipeline in every block.
      if (blocks > launch.num_sms || blocks * 10 < launch.num_sms * 6 || in / kDepth / split < 4 ||
          columns / split % 8 != 0)
        continue;
      plans.push_back(plan);
    }
  }
  return plans;
}

// By what a multiprocessor takes in, x and weights, since that limits the row of kernels. Timed one by one they rank
// otherwise: 12,288 to 4,096 columns in 32 by one block take 1 us less than 64 by two, but a layer takes 5 us more.
// More than two blocks lose more to their exchange.
std::optional<GemmPlan> gemm_hopper_plan(const Launch& launch, int64_t rows, int64_t in, int64_t out, int64_t x_stride,
                                         int64_t out_stride, bool norm_behind) {
  std::optional<GemmPlan> best;
  const auto taken_in = [&](const GemmPlan& plan) { return (plan.columns + rows) / plan.split; };
  for (const GemmPlan& plan : gemm_hopper_plans(launch, rows, in, out, x_stride, out_stride)) {
    const bool adds_squares = std::has_single_bit(static_cast<unsigned>(plan.columns / plan.split / 8));
    if (plan.split > 2 || gemm_hopper_parts(plan, out) * 10 < launch.num_sms * 8 || (norm_behind && !adds_squares))
      continue;
    if (!best || taken_in(plan) < taken_in(*best)) best = plan;
  }
  return best;
}

void gemm_hopper(const Launch& launch, const GemmPlan& plan, const Matrix& x, const void* weight, const float* bias,
                 const Matrix& out, const NormInFront& front, const NormBehind& behind) {
  Args a = make_args(x, out, plan.split, front);
  a.bias = bias;
  a.residual = static_cast<bf16*>(behind.residual.data);
  a.residual_stride = behind.residual.stride;
  a.norm = behind.weight;
  a.out_squares = behind.squares;
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
  return launch.compute_capability == 90 && x.rows <= kMaxGemmRows && x.cols % 8 == 0 && x.stride % 8 == 0 &&
         out.cols % 8 == 0 && out.stride % 8 == 0 && out.dtype == DType::kBF16 && blocks <= launch.num_sms &&
         blocks * 10 >= launch.num_sms * 6;
}

void gemm_hopper_gated(const Launch& launch, const Matrix& x, const void* weight, const Matrix& out,
                       const NormInFront& front) {
  Args a = make_args(x, out, 1, front);
  a.second_half = static_cast<int>(out.cols);
  launch_groups<kGatedColumns, true>(launch, a, x, weight);
}

}  // namespace zipage::cuda
