// The second pass: A of the window's lines, R = k^ . u, and the values' lengths.
#include "ops/cuda/compress_passes.cuh"
#include "ops/cuda/compress_value_segment.cuh"

// Compiled for other machines, the kernel is empty and what it calls has no caller.
#pragma nv_diag_suppress 177

namespace zipage::cuda {
namespace {

using namespace passes;

// ---- kernels ----

template <int kHeadDim, typename Pass>
__device__ void score_lines(const PassArgs& a, const Pass& pass, Shared<kHeadDim>& shared) {
  const int lane = pass.lane, g = lane / 4, t = lane % 4, thread = pass.thread;
  const int num_slots = a.window.source.num_slots, heads = a.window.group;
  const float scale = a.window.scale_log2, per_row = 1.0F / static_cast<float>(a.window.window);
  int i = 0;
#pragma unroll 1
  for (int unit = pass.tile(0) / a.tiles; i < pass.count; --unit) {
    const int end = min(pass.count, pass.begin + pass.count - unit * a.tiles);
    if (thread < kLines) {
      float2 line = make_float2(-INFINITY, 0.0F);
      for (int p = 0; p < a.num_parts(unit); ++p)
        line = merge(line, a.stats[(int64_t{unit} * a.parts + p) * kLines + thread]);
      // Rows past the window, and lines past the group's, give nothing.
      const int row = thread / (kRows * heads) * kRows + thread % kRows;
      shared.second.offsets[thread] = row < a.window.window ? offset_of(line) : INFINITY;
    }
    pass.load_queries(unit);
#pragma unroll 1
    for (; i < end; ++i) {
      const int first = (pass.tile(i) - unit * a.tiles) * kTile, there = num_slots - first - pass.own;
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
  using Values = ValueSegment<kHeadDim / 8, uint4>;
  const Source& source = a.window.source;
  const int c = pass.c, num_slots = source.num_slots;
  float* of_unit = shared.second.u[pass.group - 1];
  // The next tile's, zeros past the end.
  Values values;
  const auto fetch_values = [&](int next) {
    if (!a.value_norms || next >= pass.count) return;
    const int unit = pass.tile(next) / a.tiles, begin = pass.tile(next) % a.tiles * kTile + pass.own;
    values.fetch(Values::row(source, unit, min(begin, num_slots - 1)), num_slots - begin);
  };
  fetch_values(pass.group - 1);
  int i = pass.group - 1, positions[S::kRun], next_positions[S::kRun];
  pass.positions_of(i, next_positions);
  int unit = pass.tile(0) / a.tiles;
#pragma unroll 1
  for (int done = 0; done < pass.count; --unit) {
    const int end = min(pass.count, pass.begin + pass.count - unit * a.tiles);
    pass.sync_group();  // nobody reads the last one's any more
    if (pass.thread < kHeadDim) {
      float u = 0.0F;
      for (int p = 0; p < a.num_parts(unit) * kTurns; ++p)
        u += a.sums[(int64_t{unit} * a.parts * kTurns + p) * kHeadDim + pass.thread];
      of_unit[pass.thread] = u * pass.rescale;
    }
    pass.sync_group();
#pragma unroll 1
    for (; i < end; i += kTurns) {
      const int first = (pass.tile(i) - unit * a.tiles) * kTile, there = num_slots - first;
#pragma unroll
      for (int j = 0; j < S::kRun; ++j) positions[j] = next_positions[j];
      const Angles of_first[2] = {pass.of_position(positions[0], 0), pass.of_position(positions[0], 1)};
      pass.positions_of(i + kTurns, next_positions);
      const int next_box = pass.warp == 0 ? pass.box_row(i + kStages) : -1;
      const int slot = pass.run + c / 2;
      const int64_t at = int64_t{unit} * num_slots + first + slot;
      const float inverse = slot < there ? a.inverse[at] : 0.0F;
      if (a.value_norms) {
        const float norm = values.norm();
        if (Values::owns() && pass.own + Values::slot() < there)
          a.norms[int64_t{unit} * num_slots + first + pass.own + Values::slot()] = norm;
      }
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
        turn<false>(u, of_first[p]);
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
      fetch_values(i + kTurns);
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
  wait_for_previous();
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
