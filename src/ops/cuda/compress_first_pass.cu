// The first pass: maximum and sum of every line, 1 / |k|, and the sum u of the keys' directions.
#include "ops/cuda/compress_passes.cuh"

// Compiled for other machines, the kernel is empty and what it calls has no caller.
#pragma nv_diag_suppress 177

namespace zipage::cuda {
namespace {

using namespace passes;

// ---- numbers ----
constexpr float kHeadroom = 64.0F;  // log2 of what an exponential may come to before its line's base moves

// ---- kernels ----

// A warp's part in a unit's lines: sums of exponentials over a base that is as good as the greatest logit that it met
// first.
struct LineSums {
  float* bases;  // [kLines] of the warp, shared
  float scale;
  bool has_base = false;
  float sums[2 * kLineTiles] = {};  // [2 n + e] as z, of the lane's slots

  __device__ void add(const float (&z)[kLines / 2]) {
    const int t = threadIdx.x % 4;
    if (!has_base) rebase(z);
    has_base = true;
    // Exponents are made twice, since there are no registers to keep them.
    const auto base_of = [&](int n) { return *reinterpret_cast<const float2*>(bases + 8 * n + 2 * t); };
    float top = -INFINITY;
#pragma unroll
    for (int n = 0; n < kLineTiles; ++n) {
      const float2 base = base_of(n);
      top = fmaxf(top, fmaxf(fmaf(fmaxf(z[4 * n], z[4 * n + 2]), scale, base.x),
                             fmaf(fmaxf(z[4 * n + 1], z[4 * n + 3]), scale, base.y)));
    }
    if (__any_sync(kFullMask, top > kHeadroom)) rebase(z);
#pragma unroll
    for (int n = 0; n < kLineTiles; ++n) {
      const float2 base = base_of(n);
      sums[2 * n] += exp2_fast(fmaf(z[4 * n], scale, base.x)) + exp2_fast(fmaf(z[4 * n + 2], scale, base.x));
      sums[2 * n + 1] += exp2_fast(fmaf(z[4 * n + 1], scale, base.y)) + exp2_fast(fmaf(z[4 * n + 3], scale, base.y));
    }
  }

  // Bases are raised to these logits where they are greater.
  __device__ void rebase(const float (&z)[kLines / 2]) {
    const int lane = threadIdx.x % kWarpSize, t = lane % 4;
    float tops[2 * kLineTiles];
#pragma unroll
    for (int n = 0; n < kLineTiles; ++n) {
#pragma unroll
      for (int e = 0; e < 2; ++e) tops[2 * n + e] = fmaxf(z[4 * n + e], z[4 * n + 2 + e]);
    }
    const float2 top = combine_lines<Max>(tops);
    auto* mine = reinterpret_cast<float2*>(bases) + lane;
    const float2 before = has_base ? *mine : make_float2(INFINITY, INFINITY);
    // A line that sees nothing of these slots sees nothing of later ones either.
    float2 now = make_float2(fminf(before.x, -top.x * scale), fminf(before.y, -top.y * scale));
    if (now.x == INFINITY) now.x = 0.0F;
    if (now.y == INFINITY) now.y = 0.0F;
    __syncwarp();
    *mine = now;
    const float2 lost = make_float2(now.x - before.x, now.y - before.y);  // -inf at first, where the sums are zero
#pragma unroll
    for (int n = 0; n < kLineTiles; ++n) {
      sums[2 * n] *= exp2_fast(__shfl_sync(kFullMask, lost.x, 4 * n + t));
      sums[2 * n + 1] *= exp2_fast(__shfl_sync(kFullMask, lost.y, 4 * n + t));
    }
    __syncwarp();
  }
};

template <int kHeadDim, typename Pass>
__device__ void sum_lines(const PassArgs& a, const Pass& pass, Shared<kHeadDim>& shared) {
  int i = 0;
#pragma unroll 1
  for (int unit = pass.tile(0) / a.tiles; i < pass.count; ++unit) {
    const int end = min(pass.count, (unit + 1) * a.tiles - pass.begin);
    pass.load_queries(unit);
    LineSums lines{.bases = shared.first.bases[pass.warp], .scale = a.window.scale_log2};
#pragma unroll 1
    for (; i < end; ++i) {
      pass.wait_for(i);
      float z[kLines / 2];
      pass.multiply(i, unit, (pass.tile(i) - unit * a.tiles) * kTile, z);
      pass.release(i);
      lines.add(z);
    }
    reinterpret_cast<float2*>(shared.first.sums[pass.warp])[pass.lane] = combine_lines<Sum>(lines.sums);
    pass.sync_group();
    if (pass.thread < kLines) {
      float2 all = make_float2(-INFINITY, 0.0F);
      for (int w = 0; w < kGroupWarps; ++w) {
        const float sum = shared.first.sums[w][pass.thread];
        if (sum > 0.0F) all = merge(all, make_float2(-shared.first.bases[w][pass.thread], sum));
      }
      a.stats[pass.part_of(unit) * kLines + pass.thread] = all;
    }
    pass.sync_group();
  }
}

template <int kHeadDim, typename Pass>
__device__ void sum_directions(const PassArgs& a, const Pass& pass, Shared<kHeadDim>& shared) {
  using S = Shape<kHeadDim>;
  const int lane = pass.lane, c = pass.c, num_slots = a.window.source.num_slots, turn_of = pass.group - 1;
  int i = turn_of, positions[S::kRun], next_positions[S::kRun];
  pass.positions_of(i, next_positions);
  int unit = pass.tile(0) / a.tiles;
#pragma unroll 1
  for (int done = 0; done < pass.count; ++unit) {
    const int end = min(pass.count, (unit + 1) * a.tiles - pass.begin);
    float total[2][kVector] = {};
#pragma unroll 1
    for (; i < end; i += kTurns) {
      const int first = (pass.tile(i) - unit * a.tiles) * kTile, there = num_slots - first;
#pragma unroll
      for (int j = 0; j < S::kRun; ++j) positions[j] = next_positions[j];
      const Angles of_first[2] = {pass.of_position(positions[0], 0), pass.of_position(positions[0], 1)};
      pass.positions_of(i + kTurns, next_positions);
      const int next_box = pass.warp == 0 ? pass.box_row(i + kStages) : -1;
      pass.wait_for(i);

      float square[S::kRun] = {};
#pragma unroll
      for (int j = 0; j < S::kRun; ++j) {
#pragma unroll
        for (int p = 0; p < 2; ++p) {
          float x[2][kPart];
          pass.read_key(i, j, p, there, x);
#pragma unroll
          for (int e = 0; e < kPart; ++e) square[j] = fmaf(x[0][e], x[0][e], fmaf(x[1][e], x[1][e], square[j]));
        }
      }
      const float mine = pass.sum_over_lanes(square), inverse = mine > 0.0F ? rsqrtf(mine) : 0.0F;
      const int t = first + pass.run + c / 2;
      if (c % 2 == 0 && t < num_slots) a.inverse[int64_t{unit} * num_slots + t] = inverse;
#pragma unroll
      for (int p = 0; p < 2; ++p) {
        // From the newest down, as the slot's position sees the sum.
        float sum[2][kPart] = {};
#pragma unroll
        for (int j = S::kRun - 1; j >= 0; --j) {
          const float scale = __shfl_sync(kFullMask, inverse, lane - c + 2 * j);
          float x[2][kPart];
          pass.read_key(i, j, p, there, x);
#pragma unroll
          for (int e = 0; e < kPart; ++e) {
            sum[0][e] = fmaf(scale, x[0][e], sum[0][e]);
            sum[1][e] = fmaf(scale, x[1][e], sum[1][e]);
          }
          if (j > 0) pass.template turn_by<true>(sum, positions[j] - positions[j - 1], p);
        }
#pragma unroll
        for (int e = 0; e < kPart; ++e) {
          const float cosine = of_first[p].cosine[e], sine = of_first[p].sine[e];
          float &low = total[0][kPart * p + e], &high = total[1][kPart * p + e];
          low = fmaf(sum[0][e], cosine, fmaf(sum[1][e], sine, low));
          high = fmaf(sum[1][e], cosine, fmaf(-sum[0][e], sine, high));
        }
      }
      pass.release(i);
      if (pass.warp == 0) pass.ask_behind(i, next_box);
    }

    constexpr int kLeft = 2 * kVector / S::kRuns;
    float flat[2 * kVector], left[kLeft];
#pragma unroll
    for (int e = 0; e < 2 * kVector; ++e) flat[e] = total[e / kVector][e % kVector];
    share_out<Sum, kWarpSize / 2, S::kLanes>(flat, left);
    auto& shares = shared.first.shares[turn_of];
#pragma unroll
    for (int e = 0; e < kLeft; ++e) {
      const int mine = lane / S::kLanes * kLeft + e, half = mine / kVector, p = mine % kVector / kPart;
      shares[pass.warp][half * kHeadDim / 2 + (c + p * S::kLanes) * kPart + mine % kPart] = left[e];
    }
    pass.sync_group();
    if (pass.thread < kHeadDim) {
      float sum = 0.0F;
      for (int w = 0; w < kGroupWarps; ++w) sum += shares[w][pass.thread];
      a.sums[(pass.part_of(unit) * kTurns + turn_of) * kHeadDim + pass.thread] = sum * pass.rescale;
    }
    pass.sync_group();
    done = end;
  }
}

template <int kHeadDim>
__global__ void __launch_bounds__(kThreads, 2)
    first_pass_kernel(const __grid_constant__ PassArgs a, const __grid_constant__ CUtensorMap map) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  let_next_start();
  extern __shared__ __align__(1024) std::byte dynamic[];
  auto& shared = *reinterpret_cast<Shared<kHeadDim>*>(dynamic);
  const Pass<kHeadDim, false> pass(a, map, shared);
  pass.start();
  if (pass.group == 0) {
    sum_lines<kHeadDim>(a, pass, shared);
  } else {
    sum_directions<kHeadDim>(a, pass, shared);
  }
#endif
}

}  // namespace

// ---- launcher ----

void compress_first_pass(const Launch& launch, const PassArgs& a, const CUtensorMap& keys, int blocks) {
  dispatch<64, 128>(a.window.source.geometry.head_dim, [&]<int kHeadDim>() {
    passes::launch<kHeadDim>(launch, first_pass_kernel<kHeadDim>, a, keys, blocks);
  });
}

}  // namespace zipage::cuda
