// out[i] = x[rows[i]].
#include "ops/cuda/device.cuh"
#include "ops/cuda/launch.h"

namespace zipage::cuda {
namespace {

// ---- numbers ----
constexpr int kThreads = 128;
constexpr int kVector = 8;

// ---- kernels ----

__global__ void gather_rows_kernel(const bf16* x, int64_t x_stride, const int32_t* rows, bf16* out, int64_t out_stride,
                                   int cols) {
  wait_for_previous();
  const auto* from = reinterpret_cast<const uint4*>(x + rows[blockIdx.x] * x_stride);
  auto* to = reinterpret_cast<uint4*>(out + blockIdx.x * out_stride);
  for (int i = threadIdx.x; i < cols / kVector; i += kThreads) to[i] = from[i];
}

}  // namespace

// ---- launcher ----

void gather_rows(const Launch& launch, const GatherRowsParams& p) {
  run(launch, gather_rows_kernel, p.out.rows, kThreads, 0, static_cast<const bf16*>(p.x.data), p.x.stride, p.rows,
      static_cast<bf16*>(p.out.data), p.out.stride, static_cast<int>(p.out.cols));
}

}  // namespace zipage::cuda
