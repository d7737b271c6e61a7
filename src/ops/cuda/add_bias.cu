// out = x + bias, what follows a GEMM: its product is still fp32 here, so the sum is rounded once.
#include "ops/cuda/device.cuh"
#include "ops/cuda/launch.h"

namespace zipage::cuda {
namespace {

// ---- numbers ----
constexpr int kThreads = 256;

// ---- kernels ----

template <typename T>
__global__ void add_bias_kernel(const float* x, int64_t x_stride, const float* bias, T* out, int64_t out_stride,
                                int cols) {
  wait_for_previous();
  for (int i = threadIdx.x; i < cols; i += kThreads) {
    out[blockIdx.x * out_stride + i] = static_cast<T>(x[blockIdx.x * x_stride + i] + bias[i]);
  }
}

}  // namespace

// ---- launcher ----

void add_bias(const Launch& launch, const Matrix& x, const float* bias, const Matrix& out) {
  const auto* in = static_cast<const float*>(x.data);
  const int cols = static_cast<int>(out.cols);
  if (out.dtype == DType::kF32) {
    run(launch, add_bias_kernel<float>, out.rows, kThreads, 0, in, x.stride, bias, static_cast<float*>(out.data),
        out.stride, cols);
  } else {
    run(launch, add_bias_kernel<bf16>, out.rows, kThreads, 0, in, x.stride, bias, static_cast<bf16*>(out.data),
        out.stride, cols);
  }
}

}  // namespace zipage::cuda
