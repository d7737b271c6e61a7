// Linear layers of a few rows with Hopper's own instructions (gemm_hopper.cu).
#pragma once

#include <vector>

#include "ops/cuda/launch.h"

namespace zipage::cuda {

struct GemmPlan {
  int columns;  // of a tile
  int split;    // blocks that share a tile's K
};

// Ways to run a linear layer of this shape; empty when the kernel does not serve it.
std::vector<GemmPlan> gemm_hopper_plans(const Launch&, int64_t rows, int64_t in, int64_t out, int64_t x_stride,
                                        int64_t out_stride);
// weight [out.cols, x.cols] bf16; bias [out.cols] fp32 or null, added before the one rounding.
void gemm_hopper(const Launch&, const GemmPlan&, const Matrix& x, const void* weight, const float* bias,
                 const Matrix& out);

// out = silu(gate) * up; weight [2 * out.cols, x.cols] bf16, the gate's rows first.
bool serves_gemm_hopper_gated(const Launch&, const Matrix& x, const Matrix& out);
void gemm_hopper_gated(const Launch&, const Matrix& x, const void* weight, const Matrix& out);

}  // namespace zipage::cuda
