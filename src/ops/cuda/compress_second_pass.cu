// The second pass: A of the window's lines, R = k^ . u, and the values' lengths.
#include "ops/cuda/compress_passes.cuh"

// Compiled for other machines, the kernel is empty and what it calls has no caller.
#pragma nv_diag_suppress 177

namespace zipage::cuda {
namespace {

using namespace passes;

// ---- kernels ----

// The lengths of the values, by the group of the lines, which waits for keys anyway.
template <int kHeadDim, typename Pass>
struct ValueLengths {
  static constexpr int kPanels = Shape<kHeadDim>::kPanels, kAhead = kValueStages / kPanels;  // tiles
  static constexpr int kLanes = kPanelRow / 16, kTogether = kWarpSize / kLanes, kLoads = kSegment / kTogether;
  static_assert(kValueStages % kPanels == 0 && kLoads == kLanes / 2);

  const PassArgs& a;
  const Pass& pass;
  Shared<kHeadDim>& shared;

  __device__ void begin() const {
    if (!a.value_norms || pass.warp != 0) return;
    for (int i = 0; i < kAhead; ++i) pass.ask_for_values(i, pass.box_row(i));
  }
  // Of tile i, of whose rows `there` of the warp's count.
  __device__ void measure(int i, float* norms, int there) const {
    if (!a.value_norms) return;
    const int next_box = pass.warp == 0 ? pass.box_row(i + kAhead) : -1;
    float square[kLoads] = {}, sum[1];
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel) {
      const int n = i * kPanels + panel, stage = n % kValueStages;
      barrier_wait(&shared.value_full[stage], n / kValueStages & 1);
      const std::byte* from = shared.second.values[stage] + pass.own * kPanelRow + pass.lane * 16;
#pragma unroll
      for (int load = 0; load < kLoads; ++load)
        square[load] += squares(*reinterpret_cast<const uint4*>(from + load * kTogether * kPanelRow));
      barrier_arrive(&shared.value_empty[stage]);
    }
    if (pass.warp == 0 && i + kAhead < pass.count) {
#pragma unroll
      for (int panel = 0; panel < kPanels; ++panel) {
        const int n = i * kPanels + panel;
        barrier_wait(&shared.value_empty[n % kValueStages], n / kValueStages & 1);
      }
      pass.ask_for_values(i + kAhead, next_box);
    }
    share_out<Sum, kLanes / 2, 2>(square, sum);
    const float all = sum[0] + __shfl_xor_sync(kFullMask, sum[0], 1);
    const int part = pass.lane % kLanes, slot = part / 2 * kTogether + pass.lane / kLanes;
    if (part % 2 == 0 && slot < there) norms[slot] = sqrtf(all);
  }
};

template <int kHeadDim, typename Pass>
__device__ void score_lines(const PassArgs& a, const Pass& pass, Shared<kHeadDim>& shared) {
  const int lane = pass.lane, g = lane / 4, t = lane % 4, thread = pass.thread;
  const int num_slots = a.window.source.num_slots, heads = a.window.group;
  const float scale = a.window.scale_log2, per_row = 1.0F / static_cast<float>(a.window.window);
  const ValueLengths<kHeadDim, Pass> lengths{a, pass, shared};
  lengths.begin();
  int i = 0;
#pragma unroll 1
  for (int unit = pass.tile(0) / a.tiles; i < pass.count; --unit) {
    const int end = min(pass.count, pass.begin + pass.count - unit * a.tiles);
    if (thread < kLines) {
      float2 line = make_float2(-INFINITY, 0.0F);
      const int parts = a.num_parts(unit);
#pragma unroll 4
      for (int p = 0; p < parts; ++p) line = merge(line, a.stats[(int64_t{unit} * a.parts + p) * kLines + thread]);
      // Rows past the window, and lines past the group's, give nothing.
      const int row = thread / (kRows * heads) * kRows + thread % kRows;
      shared.second.offsets[thread] = row < a.window.window ? offset_of(line) : INFINITY;
    }
    pass.load_queries(unit);
#pragma unroll 1
    for (; i < end; ++i) {
      const int first = (pass.tile(i) - unit * a.tiles) * kTile, there = num_slots - first - pass.own;
      lengths.measure(i, a.norms + int64_t{unit} * num_slots + first + pass.own, there);
      pass.wait_for(i);
      float z[kLines / 2];
      pass.multiply(i, unit, first, z);
      pass.release(i);
      float score[2] = {}, best[2][2] = {{-INFINITY, -INFINITY}, {-INFINITY, -INFINITY}};  // of slots g + 8 h
#pragma unroll
      for (int n = 0, head = 0; n < kLineTiles; ++n) {
        const float2 offset = *reinterpret_cast<const float2*>(shared.second.offsets + 8 * n + 2 * t);
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          best[h][0] = fmaxf(best[h][0], fmaf(z[4 * n + 2 * h], scale, -offset.x));
          best[h][1] = fmaxf(best[h][1], fmaf(z[4 * n + 2 * h + 1], scale, -offset.y));
        }
        if (++head < heads) continue;
        head = 0;
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          score[h] += exp2_fast(best[h][0]) + exp2_fast(best[h][1]);
          best[h][0] = best[h][1] = -INFINITY;
        }
      }
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        score[h] += __shfl_xor_sync(kFullMask, score[h], 1);
        score[h] += __shfl_xor_sync(kFullMask, score[h], 2);
        score[h] *= per_row;
        if (t == 0 && g + 8 * h < there)
          a.window.scores[int64_t{unit} * num_slots + first + pass.own + g + 8 * h] = score[h];
      }
    }
    pass.sync_group();  // nobody reads the offsets any more
  }
}

template <int kHeadDim, typename Pass>
__device__ void meet_directions(const PassArgs& a, const Pass& pass, Shared<kHeadDim>& shared) {
  using S = Shape<kHeadDim>;
  const int c = pass.c, num_slots = a.window.source.num_slots;
  float* of_unit = shared.second.u[pass.group - 1];
  int i = pass.group - 1, positions[S::kRun], next_positions[S::kRun], later_positions[S::kRun];
  pass.positions_of(i, next_positions);
  pass.positions_of(i + kTurns, later_positions);
  Angles next_first[2] = {pass.of_position(next_positions[0], 0), pass.of_position(next_positions[0], 1)};
  int unit = pass.tile(0) / a.tiles;
#pragma unroll 1
  for (int done = 0; done < pass.count; --unit) {
    const int end = min(pass.count, pass.begin + pass.count - unit * a.tiles);
    pass.sync_group();  // nobody reads the last one's any more
    if (pass.thread < kHeadDim) {
      float u = 0.0F;
      const int shares = a.num_parts(unit) * kTurns;
#pragma unroll 4
      for (int p = 0; p < shares; ++p) u += a.sums[(int64_t{unit} * a.parts * kTurns + p) * kHeadDim + pass.thread];
      of_unit[pass.thread] = u * pass.rescale;
    }
    pass.sync_group();
#pragma unroll 1
    for (; i < end; i += kTurns) {
      const int first = (pass.tile(i) - unit * a.tiles) * kTile, there = num_slots - first;
#pragma unroll
      for (int j = 0; j < S::kRun; ++j) positions[j] = next_positions[j], next_positions[j] = later_positions[j];
      pass.positions_of(i + 2 * kTurns, later_positions);
      const int next_box = pass.warp == 0 ? pass.box_row(i + kStages) : -1;
      const int slot = pass.run + c / 2;
      const int64_t at = int64_t{unit} * num_slots + first + slot;
      const float inverse = slot < there ? a.inverse[at] : 0.0F;
      pass.wait_for(i);
      float dots[S::kRun] = {};
#pragma unroll
      for (int p = 0; p < 2; ++p) {
        float u[2][kPart];
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const float4 v = *reinterpret_cast<const float4*>(of_unit + h * kHeadDim / 2 + (c + p * S::kLanes) * kPart);
          u[h][0] = v.x, u[h][1] = v.y, u[h][2] = v.z, u[h][3] = v.w;
        }
        turn<false>(u, next_first[p]);
        next_first[p] = pass.of_position(next_positions[0], p);  // the next tile's, long before its turn
#pragma unroll
        for (int j = 0; j < S::kRun; ++j) {
          if (j > 0) pass.template turn_by<false>(u, positions[j] - positions[j - 1], p);
          float x[2][kPart];
          pass.read_key(i, j, p, there, x);
#pragma unroll
          for (int e = 0; e < kPart; ++e) dots[j] = fmaf(x[0][e], u[0][e], fmaf(x[1][e], u[1][e], dots[j]));
        }
      }
      pass.release(i);
      if (pass.warp == 0) pass.ask_behind(i, next_box);
      const float dot = pass.sum_over_lanes(dots) * inverse;
      if (c % 2 == 0 && slot < there) a.redundancy[at] = dot;
    }
    done = end;
  }
}

template <int kHeadDim>
__global__ void __launch_bounds__(kThreads, 2)
    second_pass_kernel(const __grid_constant__ PassArgs a, const __grid_constant__ CUtensorMap map) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  let_next_start();
  extern __shared__ __align__(1024) std::byte dynamic[];
  auto& shared = *reinterpret_cast<Shared<kHeadDim>*>(dynamic);
  const Pass<kHeadDim, true> pass(a, map, shared);
  pass.start();
  if (pass.group == 0) {
    score_lines<kHeadDim>(a, pass, shared);
  } else {
    meet_directions<kHeadDim>(a, pass, shared);
  }
#endif
}

}  // namespace

// ---- launcher ----

void compress_second_pass(const Launch& launch, const PassArgs& a, const CUtensorMap& keys, int blocks) {
  dispatch<64, 128>(a.window.source.geometry.head_dim, [&]<int kHeadDim>() {
    passes::launch<kHeadDim>(launch, second_pass_kernel<kHeadDim>, a, keys, blocks);
  });
}

}  // namespace zipage::cuda
