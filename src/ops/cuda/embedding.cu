// out[i] = table[token_ids[i]], or of the token that token_ids[i] refers to.
#include "ops/cuda/device.cuh"
#include "ops/cuda/launch.h"

namespace zipage::cuda {
namespace {

// ---- numbers ----
constexpr int kThreads = 128;
constexpr int kVector = 8;  // 16 bytes

// ---- kernels ----

__global__ void embedding_kernel(const bf16* table, const int32_t* token_ids, const int32_t* sampled, bf16* out,
                                 int64_t out_stride, int hidden) {
  wait_for_previous();
  const int64_t row = blockIdx.x;
  int64_t id = token_ids[row];
  if (id < 0) id = max(0, sampled[-1 - id]);
  const auto* from = reinterpret_cast<const uint4*>(table + id * hidden);
  auto* to = reinterpret_cast<uint4*>(out + row * out_stride);
  for (int i = threadIdx.x; i < hidden / kVector; i += kThreads) to[i] = from[i];
}

}  // namespace

// ---- launcher ----

void embedding(const Launch& launch, const EmbeddingParams& p, const void* table) {
  run(launch, embedding_kernel, p.out.rows, kThreads, 0, static_cast<const bf16*>(table), p.token_ids, p.sampled,
      static_cast<bf16*>(p.out.data), p.out.stride, static_cast<int>(p.out.cols));
}

}  // namespace zipage::cuda
