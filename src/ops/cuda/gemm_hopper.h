// Linear layers of a few rows with Hopper's own instructions (gemm_hopper.cu).
#pragma once

#include <optional>
#include <vector>

#include "ops/cuda/launch.h"

namespace zipage::cuda {

inline constexpr int kMaxGemmRows = 128;

struct GemmPlan {
  int columns;  // of a tile
  int split;    // blocks that share a tile's K
};

// An RMS norm on both sides of which such layers stand needs no kernel of its own: the one in front of it adds to the
// residual, leaves in `out` the new residual times the norm's weight, and the sums of its squares in parts; the one
// behind it brings in each row's factor, 1 / rms.
struct NormBehind {
  Matrix residual;                // bf16 [rows, out.cols], or no data: no norm follows
  const float* weight = nullptr;  // [out.cols]
  float* squares = nullptr;       // [gemm_hopper_parts, kMaxGemmRows]
};
struct NormInFront {
  const float* squares = nullptr;  // or null: x is taken as it is
  int parts = 0;
  float eps = 0;
};

// Ways to run a linear layer of this shape; empty when the kernel does not serve it.
std::vector<GemmPlan> gemm_hopper_plans(const Launch&, int64_t rows, int64_t in, int64_t out, int64_t x_stride,
                                        int64_t out_stride);
// The way for layers between which norms are brought in; none where blocks would leave out much of the machine.
std::optional<GemmPlan> gemm_hopper_plan(const Launch&, int64_t rows, int64_t in, int64_t out, int64_t x_stride,
                                         int64_t out_stride, bool norm_behind);
// Parts in which the blocks of a layer of so many features leave their rows' squares.
int gemm_hopper_parts(const GemmPlan&, int64_t out);
// weight [out.cols, x.cols] bf16; bias [out.cols] fp32 or null, added before the one rounding.
void gemm_hopper(const Launch&, const GemmPlan&, const Matrix& x, const void* weight, const float* bias,
                 const Matrix& out, const NormInFront& = {}, const NormBehind& = {});

// out = silu(gate) * up; weight [2 * out.cols, x.cols] bf16, the gate's rows first.
bool serves_gemm_hopper_gated(const Launch&, const Matrix& x, const Matrix& out);
void gemm_hopper_gated(const Launch&, const Matrix& x, const void* weight, const Matrix& out, const NormInFront& = {});

}  // namespace zipage::cuda
