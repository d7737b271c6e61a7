#include <algorithm>

#include "ops/cuda/cuda_backend.h"
#include "ops/cuda/read_bandwidth.h"

namespace zipage {
namespace cuda {
namespace {

// ---- numbers ----
constexpr int kThreads = 512;
constexpr int kBlocksPerSm = 4;
constexpr int kUnroll = 8;  // loads of 16 bytes under way in a thread
constexpr size_t kMostBytes = size_t{4} << 30, kLeastBytes = size_t{256} << 20;
constexpr int kTries = 20;

// ---- kernels ----

__global__ void __launch_bounds__(kThreads) read_kernel(const uint4* data, size_t count, uint32_t* sink) {
  const size_t stride = size_t{gridDim.x} * kThreads;
  uint32_t bits = 0;
  for (size_t i = size_t{blockIdx.x} * kThreads + threadIdx.x; i + (kUnroll - 1) * stride < count;
       i += kUnroll * stride) {
    uint4 v[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) v[u] = __ldcs(data + i + u * stride);
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) bits |= v[u].x | v[u].y | v[u].z | v[u].w;
  }
  if (bits == 1) *sink = bits;  // never: the memory is all zeros, which the compiler does not know
}

}  // namespace
}  // namespace cuda

double cuda_read_bytes_per_second(Backend& backend) {
  using namespace cuda;
  const size_t bytes = std::min(kMostBytes, backend.info().free_memory_bytes / 2);
  if (bytes < kLeastBytes) return 0;
  const auto memory = backend.allocate(bytes, "read bandwidth", MemoryKind::kDevice);
  const auto queue = backend.make_queue(QueuePriority::kNormal);
  cudaDeviceProp device{};
  check(cudaGetDeviceProperties(&device, 0), "reading memory");
  const unsigned grid = static_cast<unsigned>(device.multiProcessorCount * kBlocksPerSm);
  const size_t count = bytes / sizeof(uint4);
  const size_t read = count / (size_t{grid} * kThreads * kUnroll) * (size_t{grid} * kThreads * kUnroll);
  double best = 0;
  for (int i = 0; i < kTries; ++i) {
    const auto begin = backend.record(*queue);
    read_kernel<<<grid, kThreads, 0, static_cast<CudaQueue&>(*queue).stream()>>>(memory->as<const uint4>(), read,
                                                                                 memory->as<uint32_t>());
    check(cudaGetLastError(), "reading memory");
    const auto end = backend.record(*queue);
    end->wait();
    best = std::max(best, static_cast<double>(read * sizeof(uint4)) / end->seconds_since(*begin));
  }
  return best;
}

}  // namespace zipage
