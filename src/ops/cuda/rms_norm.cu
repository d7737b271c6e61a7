// out = x / rms(x + residual) * weight. One block a row; the row stays in registers between the two passes.
#include "ops/cuda/device.cuh"
#include "ops/cuda/launch.h"

namespace zipage::cuda {
namespace {

// ---- numbers ----
constexpr int kVector = 8;         // 16 bytes
constexpr int kMaxVectors = 4;     // a thread's share of a row
constexpr int kMaxThreads = 1024;  // rows up to 32,768 elements

// ---- kernels ----

template <int kVectors>
__global__ void rms_norm_kernel(const bf16* x, int64_t x_stride, bf16* residual, int64_t residual_stride,
                                const float* weight, float eps, bf16* out, int64_t out_stride, int hidden) {
  wait_for_previous();
  __shared__ float reduction[kWarpSize];
  const int64_t row = blockIdx.x;
  const int vectors = hidden / kVector;
  float values[kVectors][kVector];
  float squares = 0.0F;
#pragma unroll
  for (int j = 0; j < kVectors; ++j) {
    const int i = threadIdx.x + j * blockDim.x;
    if (i >= vectors) break;
    unpack8(reinterpret_cast<const uint4*>(x + row * x_stride)[i], values[j]);
    if (residual != nullptr) {
      auto* sum = reinterpret_cast<uint4*>(residual + row * residual_stride) + i;
      float other[kVector];
      unpack8(*sum, other);
#pragma unroll
      for (int e = 0; e < kVector; ++e) values[j][e] += other[e];
      const uint4 rounded = pack8(values[j]);
      *sum = rounded;
      unpack8(rounded, values[j]);  // the stream that later layers read is what gets normalised
    }
#pragma unroll
    for (int e = 0; e < kVector; ++e) squares += values[j][e] * values[j][e];
  }
  const float scale = rsqrtf(block_reduce<Sum>(squares, reduction) / static_cast<float>(hidden) + eps);
#pragma unroll
  for (int j = 0; j < kVectors; ++j) {
    const int i = threadIdx.x + j * blockDim.x;
    if (i >= vectors) break;
    const float4 w0 = reinterpret_cast<const float4*>(weight)[2 * i];
    const float4 w1 = reinterpret_cast<const float4*>(weight)[2 * i + 1];
    const float w[kVector] = {w0.x, w0.y, w0.z, w0.w, w1.x, w1.y, w1.z, w1.w};
#pragma unroll
    for (int e = 0; e < kVector; ++e) values[j][e] *= scale * w[e];
    reinterpret_cast<uint4*>(out + row * out_stride)[i] = pack8(values[j]);
  }
}

}  // namespace

// ---- launcher ----

void rms_norm(const Launch& launch, const RmsNormParams& p) {
  const int hidden = static_cast<int>(p.x.cols);
  const int vectors = hidden / kVector;
  // Few rows: spread a row over many threads. Many rows: more work a thread, fewer warps to wait for each other.
  const int per_thread = p.x.rows >= launch.num_sms * 4 ? 2 : 1;
  int threads = ceil_div(ceil_div(vectors, per_thread), kWarpSize) * kWarpSize;
  threads = threads > kMaxThreads ? kMaxThreads : threads;
  const int needed = ceil_div(vectors, threads);
  const auto kernel = needed <= 1   ? rms_norm_kernel<1>
                      : needed <= 2 ? rms_norm_kernel<2>
                                    : rms_norm_kernel<kMaxVectors>;
  run(launch, kernel, p.x.rows, threads, 0, static_cast<const bf16*>(p.x.data), p.x.stride,
      static_cast<bf16*>(p.residual.data), p.residual.stride, p.weight, p.eps, static_cast<bf16*>(p.out.data),
      p.out.stride, hidden);
}

}  // namespace zipage::cuda
