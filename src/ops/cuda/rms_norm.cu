// out = x / rms(x + residual) * weight. One block a row; the row stays in registers between the two passes. x may be
// the sum of parts that a GEMM left.
#include "ops/cuda/device.cuh"
#include "ops/cuda/launch.h"

namespace zipage::cuda {
namespace {

// ---- numbers ----
constexpr int kVector = 8;      // 16 bytes
constexpr int kMaxVectors = 4;  // a thread's share of a row
constexpr int kMaxThreads = 1024;
static_assert(kMaxThreads * kMaxVectors * kVector == kMaxNormSize);

// ---- kernels ----

template <int kVectors, bool kInParts>
__global__ void rms_norm_kernel(const bf16* x, int64_t x_stride, ProductParts parts, bf16* residual,
                                int64_t residual_stride, const float* weight, float eps, bf16* out, int64_t out_stride,
                                int hidden) {
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
    if constexpr (kInParts) {
      const float* from = parts.data + row * hidden + i * kVector;
      load8(from, values[j]);
      for (int part = 1; part < parts.count; ++part) {
        float more[kVector];
        load8(from + part * gridDim.x * int64_t{hidden}, more);
#pragma unroll
        for (int e = 0; e < kVector; ++e) values[j][e] += more[e];
      }
    } else {
      unpack8(reinterpret_cast<const uint4*>(x + row * x_stride)[i], values[j]);
    }
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
    float w[kVector];
    load8(weight + i * kVector, w);
#pragma unroll
    for (int e = 0; e < kVector; ++e) values[j][e] *= scale * w[e];
    reinterpret_cast<uint4*>(out + row * out_stride)[i] = pack8(values[j]);
  }
}

}  // namespace

// ---- launcher ----

namespace {

template <bool kInParts>
void launch_rms_norm(const Launch& launch, const RmsNormParams& p, const ProductParts& parts) {
  const int hidden = static_cast<int>(p.x.cols);
  const int vectors = hidden / kVector;
  // Few rows: spread a row over many threads. Many rows: more work a thread, fewer warps to wait for each other.
  const int per_thread = p.x.rows >= launch.num_sms * 4 ? 2 : 1;
  int threads = ceil_div(ceil_div(vectors, per_thread), kWarpSize) * kWarpSize;
  threads = threads > kMaxThreads ? kMaxThreads : threads;
  const int needed = ceil_div(vectors, threads);
  const auto kernel = needed <= 1   ? rms_norm_kernel<1, kInParts>
                      : needed <= 2 ? rms_norm_kernel<2, kInParts>
                                    : rms_norm_kernel<kMaxVectors, kInParts>;
  run(launch, kernel, p.x.rows, threads, 0, static_cast<const bf16*>(p.x.data), p.x.stride, parts,
      static_cast<bf16*>(p.residual.data), p.residual.stride, p.weight, p.eps, static_cast<bf16*>(p.out.data),
      p.out.stride, hidden);
}

}  // namespace

void rms_norm(const Launch& launch, const RmsNormParams& p) {
  launch_rms_norm<false>(launch, p, {});
}

void rms_norm_of_parts(const Launch& launch, const ProductParts& parts, const RmsNormParams& p) {
  launch_rms_norm<true>(launch, p, parts);
}

}  // namespace zipage::cuda
