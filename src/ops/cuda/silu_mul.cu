// out = silu(gate) * up, 16 bytes a thread.
#include "ops/cuda/device.cuh"
#include "ops/cuda/launch.h"

namespace zipage::cuda {
namespace {

// ---- numbers ----
constexpr int kThreads = 256;
constexpr int kVector = 8;

// ---- kernels ----

__global__ void silu_mul_kernel(const bf16* gate_up, int64_t stride, bf16* out, int64_t out_stride, int vectors) {
  wait_for_previous();
  const int i = blockIdx.x * kThreads + threadIdx.x;
  if (i >= vectors) return;
  const int64_t row = blockIdx.y;
  const auto* in = reinterpret_cast<const uint4*>(gate_up + row * stride);
  float gate[kVector], up[kVector];
  unpack8(in[i], gate);
  unpack8(in[vectors + i], up);
#pragma unroll
  for (int e = 0; e < kVector; ++e) gate[e] = gate[e] / (1.0F + __expf(-gate[e])) * up[e];
  reinterpret_cast<uint4*>(out + row * out_stride)[i] = pack8(gate);
}

}  // namespace

// ---- launcher ----

void silu_mul(const Launch& launch, const SiluMulParams& p) {
  const int vectors = static_cast<int>(p.out.cols) / kVector;
  const auto* in = static_cast<const bf16*>(p.gate_up.data);
  auto* out = static_cast<bf16*>(p.out.data);
  constexpr int64_t kMaxRows = 65535;  // of a grid's second dimension
  for (int64_t row = 0; row < p.out.rows; row += kMaxRows) {
    const int64_t rows = p.out.rows - row < kMaxRows ? p.out.rows - row : kMaxRows;
    run(launch, silu_mul_kernel, dim3(ceil_div(vectors, kThreads), rows), kThreads, 0, in + row * p.gate_up.stride,
        p.gate_up.stride, out + row * p.out.stride, p.out.stride, vectors);
  }
}

}  // namespace zipage::cuda
