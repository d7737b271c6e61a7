// Made-up numbers, in place of weights and KV that nobody loads.
#include <algorithm>

#include "ops/cuda/device.cuh"
#include "ops/cuda/launch.h"
#include "ops/noise.h"

namespace zipage::cuda {
namespace {

// ---- numbers ----
constexpr int kThreads = 256;
constexpr size_t kPerBlock = size_t{1} << 16;

// ---- kernels ----

template <typename T>
__global__ void noise_kernel(T* data, size_t count, float scale, uint64_t seed) {
  wait_for_previous();
  const size_t end = min(count, (blockIdx.x + size_t{1}) * kPerBlock);
  for (size_t i = blockIdx.x * kPerBlock + threadIdx.x; i < end; i += kThreads) {
    const float value = scale * noise_value(seed, i);
    if constexpr (std::is_same_v<T, bf16>) {
      data[i] = bf16(value);
    } else {
      data[i] = __nv_cvt_float_to_fp8(value, __NV_SATFINITE, __NV_E4M3);
    }
  }
}

}  // namespace

// ---- launcher ----

void noise(const Launch& launch, void* data, DType dtype, size_t count, float scale, uint64_t seed) {
  const auto blocks = static_cast<unsigned>((count + kPerBlock - 1) / kPerBlock);
  if (dtype == DType::kBF16) {
    run(launch, noise_kernel<bf16>, blocks, kThreads, 0, static_cast<bf16*>(data), count, scale, seed);
  } else {
    run(launch, noise_kernel<fp8>, blocks, kThreads, 0, static_cast<fp8*>(data), count, scale, seed);
  }
}

}  // namespace zipage::cuda
