// Gate, up and SiLU of many rows with Hopper's own instructions (gemm_gated.cu).
#pragma once

#include "ops/cuda/launch.h"

namespace zipage::cuda {

// Whether it serves the shapes, and is faster than a GEMM and SiLU one after the other: not from 257 rows to 511.
bool serves_gemm_gated(const Launch&, const Matrix& x, const Matrix& out);
// out = silu(gate) * up; weight [2 * out.cols, x.cols] bf16, the gate's rows first.
void gemm_gated(const Launch&, const Matrix& x, const void* weight, const Matrix& out);

}  // namespace zipage::cuda
