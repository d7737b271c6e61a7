// Stage 1 with K read once: a cluster of blocks has all of a unit's slots, and the logits stay in registers between the
// softmax's two halves. A warpgroup makes them, slots by lines. The blocks tell each other every line's maximum and
// sum.
#include "ops/cuda/compress_key_panels.cuh"
#include "ops/cuda/compress_window_scores.cuh"

// Compiled for other machines, the kernel is empty and what it calls has no caller.
#pragma nv_diag_suppress 177

namespace zipage::cuda {
namespace {

// ---- numbers ----
constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarpSize;
constexpr int kGroupThreads = 128;  // of a warpgroup
constexpr int kTile = 64;           // slots of a product
constexpr int kTiles = 3;           // of a warpgroup
constexpr int kGroupSlots = kTiles * kTile;
constexpr int kSlots = kThreads / kGroupThreads * kGroupSlots;  // of a block
constexpr int kMaxCluster = 8;
static_assert(kTile == 4 * kSegment);

template <int kHeadDim>
struct Shared {
  static constexpr int kPanels = kHeadDim / 64;
  std::byte keys[kPanels * kSlots * kPanelRow];  // after the products: Parts
  std::byte queries[kPanels * kLines * kPanelRow];
  float4 brought[kWarpSize];  // to the cluster: maximum and sum of each line of a pair
};

// Of pairs of lines, by warps.
struct Parts {
  float2 maxima[kWarps][kWarpSize], sums[kWarps][kWarpSize], offsets[kWarps][kWarpSize];
};

// ---- kernels ----

template <int kHeadDim>
__device__ __forceinline__ void load_queries(const WindowScores& a, int unit, std::byte* queries) {
  constexpr int kChunks = kHeadDim / 8;
  const bf16* of_unit = unit_queries(a, unit, kHeadDim);
  const float per_group = 1.0F / static_cast<float>(a.group);
#pragma unroll
  for (int i = 0; i < kLines * kChunks / kThreads; ++i) {
    const int c = i * kThreads + static_cast<int>(threadIdx.x), line = c / kChunks, tile = line / kRows;
    const int row_tile = static_cast<int>((static_cast<float>(tile) + 0.5F) * per_group);  // tile / group, sooner
    const int row = row_tile * kRows + line % kRows, head = tile - row_tile * a.group;
    const bool there = row < a.window;
    const bf16* from = of_unit + (ring_row(a, there ? row : 0) * a.num_heads + head) * kHeadDim;
    copy_async16(shared_address(queries + panel_chunk<kLines>(line, c % kChunks)),
                 reinterpret_cast<const uint4*>(from) + c % kChunks, there);
  }
}

template <int kHeadDim, bool kFp8>
__global__ void __launch_bounds__(kThreads, 2)
    window_cluster_kernel(const __grid_constant__ WindowScores a, const int cluster) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  wait_for_previous();
  extern __shared__ __align__(1024) std::byte dynamic[];
  auto& shared = *reinterpret_cast<Shared<kHeadDim>*>(dynamic);
  const int thread = threadIdx.x, lane = thread % kWarpSize, g = lane / 4, t = lane % 4;
  const int warp = __shfl_sync(kFullMask, thread / kWarpSize, 0), group = warp / 4;  // in registers that a warp shares
  const int unit = static_cast<int>(blockIdx.x) / cluster, rank = static_cast<int>(blockIdx.x) % cluster;
  const int num_slots = a.source.num_slots, begin = rank * kSlots;
  const int own = group * kGroupSlots + warp % 4 * kSegment;  // the warp's first row of the group's first tile

#pragma unroll
  for (int m = 0; m < kTiles; ++m) {
    load_panel_segment<kHeadDim, kSlots, kFp8>(a.source, unit, begin + own + m * kTile, shared.keys, own + m * kTile);
    if (m == 0) load_queries<kHeadDim>(a, unit, shared.queries);
    copy_commit();
  }
  // z[m][4 n + 2 h + e] is slot 8 h of the lane's in tile m and line 8 n + 2 t + e.
  float z[kTiles][kLines / 2];
  const uint64_t group_rows = operand(shared_address(shared.keys) + group * kGroupSlots * kPanelRow, 16, 1024);
  const uint64_t all_lines = operand(shared_address(shared.queries), 16, 1024);
  const auto multiply = [&](int m) {
    pin(z[m]);
    product_begin();
#pragma unroll
    for (int k = 0; k < kHeadDim / 16; ++k) {  // in units of an operand's address
      const int panel = k / 4, inside = k % 4 * 32 / 16;
      product_ss(z[m], group_rows + (panel * kSlots + m * kTile) * kPanelRow / 16 + inside,
                 all_lines + panel * kLines * kPanelRow / 16 + inside, k > 0);
    }
    product_commit();
  };
  static_assert(kTiles == 3);
  copy_wait<2>();
  fence_async_proxy();
  __syncthreads();  // queries are the whole block's
  multiply(0);
  copy_wait<1>();
  fence_async_proxy();
  sync_threads(1 + group, kGroupThreads);
  multiply(1);
  copy_wait<0>();
  fence_async_proxy();
  sync_threads(1 + group, kGroupThreads);
  multiply(2);
  product_wait<0>();
#pragma unroll
  for (int m = 0; m < kTiles; ++m) pin(z[m]);
  const float scale = a.scale_log2 * (kFp8 ? a.source.k_scale[unit] : 1.0F);  // positive

  const int first_slot = begin + own + g;
  if (begin + kSlots > num_slots - a.window * a.row_stride) {
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int first_visible = first_row_seeing(a, unit, first_slot + m * kTile + 8 * h);
        int first_row = 2 * t;  // of the line tile
#pragma unroll
        for (int n = 0, head = 0; n < kLineTiles; ++n) {
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            if (first_row + e < first_visible) z[m][4 * n + 2 * h + e] = -INFINITY;
          }
          if (++head == a.group) head = 0, first_row += kRows;
        }
      }
    }
  }

  // Every line's maximum and sum in the block.
  auto& parts = *reinterpret_cast<Parts*>(shared.keys);
  float of_lines[2 * kLineTiles];
#pragma unroll
  for (int n = 0; n < kLineTiles; ++n) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      float maximum = -INFINITY;
#pragma unroll
      for (int m = 0; m < kTiles; ++m) maximum = fmaxf(maximum, fmaxf(z[m][4 * n + e], z[m][4 * n + 2 + e]));
      of_lines[2 * n + e] = maximum;
    }
  }
  __syncthreads();  // the block's products are made
  parts.maxima[warp][lane] = combine_lines<Max>(of_lines);
  __syncthreads();
  float2 top = parts.maxima[0][lane];
#pragma unroll
  for (int w = 1; w < kWarps; ++w) {
    const float2 other = parts.maxima[w][lane];
    top.x = fmaxf(top.x, other.x), top.y = fmaxf(top.y, other.y);
  }
  top.x *= scale, top.y *= scale;
  const float2 base = make_float2(top.x == -INFINITY ? 0.0F : -top.x, top.y == -INFINITY ? 0.0F : -top.y);
#pragma unroll
  for (int n = 0; n < kLineTiles; ++n) {
    const float bases[2] = {__shfl_sync(kFullMask, base.x, 4 * n + t), __shfl_sync(kFullMask, base.y, 4 * n + t)};
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      float sum = 0.0F;
#pragma unroll
      for (int m = 0; m < kTiles; ++m) {
        sum += exp2_fast(fmaf(z[m][4 * n + e], scale, bases[e]));
        sum += exp2_fast(fmaf(z[m][4 * n + 2 + e], scale, bases[e]));
      }
      of_lines[2 * n + e] = sum;
    }
  }
  parts.sums[warp][lane] = combine_lines<Sum>(of_lines);
  __syncthreads();
  if (warp == 0) {
    float2 sum = parts.sums[0][lane];
#pragma unroll
    for (int w = 1; w < kWarps; ++w) {
      const float2 other = parts.sums[w][lane];
      sum.x += other.x, sum.y += other.y;
    }
    shared.brought[lane] = make_float4(top.x, sum.x, top.y, sum.y);
    cluster_arrive();
  } else {
    cluster_arrive_relaxed();
  }
  cluster_wait();
  float2 line[2] = {{-INFINITY, 0.0F}, {-INFINITY, 0.0F}};
  for (int r = 0; r < cluster; ++r) {
    const float4 part = load_cluster(cluster_address(shared_address(&shared.brought[lane]), r));
    line[0] = merge(line[0], make_float2(part.x, part.y)), line[1] = merge(line[1], make_float2(part.z, part.w));
  }
  // Rows past the window, and lines past the group's, give nothing.
  const int row = lane / (4 * a.group) * kRows + 2 * t;
  float2* offsets = parts.offsets[warp];
  offsets[lane] =
      make_float2(row < a.window ? offset_of(line[0]) : INFINITY, row + 1 < a.window ? offset_of(line[1]) : INFINITY);
  cluster_arrive_relaxed();
  __syncwarp();

  const float per_row = 1.0F / static_cast<float>(a.window);
#pragma unroll
  for (int m = 0; m < kTiles; ++m) {
    float total[2] = {}, best[2][2] = {{-INFINITY, -INFINITY}, {-INFINITY, -INFINITY}};  // of slots 8 h
#pragma unroll
    for (int n = 0, head = 0; n < kLineTiles; ++n) {
      const float2 offset = offsets[4 * n + t];
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        best[h][0] = fmaxf(best[h][0], fmaf(z[m][4 * n + 2 * h], scale, -offset.x));
        best[h][1] = fmaxf(best[h][1], fmaf(z[m][4 * n + 2 * h + 1], scale, -offset.y));
      }
      if (++head < a.group) continue;
      head = 0;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        total[h] += exp2_fast(best[h][0]) + exp2_fast(best[h][1]);
        best[h][0] = best[h][1] = -INFINITY;
      }
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float v = total[h];
      v += __shfl_xor_sync(kFullMask, v, 1);
      v += __shfl_xor_sync(kFullMask, v, 2);
      const int slot = first_slot + m * kTile + 8 * h;
      if (t == 0 && slot < num_slots) a.scores[int64_t{unit} * num_slots + slot] = v * per_row;
    }
  }
  cluster_wait();  // nobody leaves while others read
#endif
}

// ---- launcher ----

template <int kHeadDim, bool kFp8>
void launch_window(const Launch& launch, const WindowScores& a) {
  constexpr int kBytes = sizeof(Shared<kHeadDim>);
  const auto kernel = window_cluster_kernel<kHeadDim, kFp8>;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes), "window_scores");
  const int cluster = ceil_div(a.source.num_slots, kSlots);
  run_in_clusters(launch, cluster, kernel, cluster * a.source.num_units(), kThreads, kBytes, a, cluster);
}

}  // namespace

bool serves_window_cluster(const Launch& launch, const WindowScores& a) {
  const int head_dim = a.source.geometry.head_dim;
  return launch.compute_capability == 90 && (head_dim == 64 || head_dim == 128) &&
         a.row_tiles * a.group <= kLineTiles && a.source.num_slots <= kMaxCluster * kSlots;
}

void window_scores_cluster(const Launch& launch, const WindowScores& a) {
  dispatch<64, 128>(a.source.geometry.head_dim, [&]<int kHeadDim>() {
    if (a.source.kv.is_fp8) {
      launch_window<kHeadDim, true>(launch, a);
    } else {
      launch_window<kHeadDim, false>(launch, a);
    }
  });
}

}  // namespace zipage::cuda
