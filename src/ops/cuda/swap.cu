// Blocks of all layers to or from other memory, and single slots as fp32.
#include <algorithm>

#include "ops/cuda/device.cuh"
#include "ops/cuda/launch.h"

namespace zipage::cuda {
namespace {

// ---- numbers ----
constexpr int kThreads = 256;
constexpr int kBlocksPerLaunch = 256;

struct SwapArgs {
  std::byte* data;
  std::byte *scores, *positions;  // or null
  std::byte* host;
  int64_t layer_bytes, block_bytes;            // of K and V
  int64_t slot_layer_bytes, slot_block_bytes;  // of scores, and of positions
  int64_t host_block_bytes;
  int num_layers, num_blocks;
  bool to_host;
  int32_t blocks[kBlocksPerLaunch], host_blocks[kBlocksPerLaunch];
};

// ---- kernels ----

__device__ void copy(std::byte* device, std::byte* host, int64_t bytes, bool to_host) {
  auto* from = reinterpret_cast<const uint4*>(to_host ? device : host);
  auto* to = reinterpret_cast<uint4*>(to_host ? host : device);
  constexpr int kUnroll = 4;
  const int64_t count = bytes / 16;
  int64_t i = threadIdx.x;
  for (; i + (kUnroll - 1) * kThreads < count; i += kUnroll * kThreads) {
    uint4 v[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) v[u] = from[i + u * kThreads];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) to[i + u * kThreads] = v[u];
  }
  for (; i < count; i += kThreads) to[i] = from[i];
}

__global__ void __launch_bounds__(kThreads) swap_kernel(const __grid_constant__ SwapArgs a) {
  wait_for_previous();
  for (int item = blockIdx.x; item < a.num_blocks * a.num_layers; item += gridDim.x) {
    const int i = item / a.num_layers, layer = item % a.num_layers;
    std::byte* host = a.host + a.host_blocks[i] * a.host_block_bytes;
    copy(a.data + layer * a.layer_bytes + a.blocks[i] * a.block_bytes, host + layer * a.block_bytes, a.block_bytes,
         a.to_host);
    if (a.scores == nullptr) continue;
    const int64_t at = layer * a.slot_layer_bytes + a.blocks[i] * a.slot_block_bytes;
    host += a.num_layers * a.block_bytes + layer * a.slot_block_bytes;
    copy(a.scores + at, host, a.slot_block_bytes, a.to_host);
    copy(a.positions + at, host + a.num_layers * a.slot_block_bytes, a.slot_block_bytes, a.to_host);
  }
}

__global__ void kv_gather_kernel(KvLayout kv, int layer, int head, int head_dim, const int32_t* slots,
                                 const float* k_scale, const float* v_scale, float* k, float* v) {
  wait_for_previous();
  const int slot = slots[blockIdx.x];
  const std::byte* row = kv.key_row(layer, slot / kv.block_size, head, slot % kv.block_size);
  for (int i = threadIdx.x; i < 2 * head_dim; i += blockDim.x) {
    const bool value = i >= head_dim;
    const int d = value ? i - head_dim : i;
    const std::byte* from = value ? row + kv.value_offset : row;
    float x;
    if (kv.is_fp8) {
      const float scale = (value ? v_scale : k_scale)[layer * kv.num_kv_heads + head];
      x = fp8x2_to_float2(static_cast<uint8_t>(from[d])).x * scale;
    } else {
      x = __bfloat162float(reinterpret_cast<const bf16*>(from)[d]);
    }
    (value ? v : k)[int64_t{blockIdx.x} * head_dim + d] = x;
  }
}

}  // namespace

// ---- launcher ----

void swap(const Launch& launch, const SwapParams& p) {
  const KvGeometry& g = p.kv.geometry;
  const KvLayout kv(p.kv);
  SwapArgs a{};
  a.data = p.kv.data;
  a.scores = reinterpret_cast<std::byte*>(p.kv.scores);
  a.positions = reinterpret_cast<std::byte*>(p.kv.positions);
  a.host = p.host;
  a.layer_bytes = kv.layer_bytes;
  a.block_bytes = kv.block_bytes;
  a.slot_block_bytes = int64_t{g.num_kv_heads} * g.block_size * 4;
  a.slot_layer_bytes = a.slot_block_bytes * g.num_blocks;
  a.host_block_bytes = g.num_layers * (a.block_bytes + 2 * a.slot_block_bytes);
  a.num_layers = g.num_layers;
  a.to_host = p.to_host;
  for (size_t first = 0; first < p.blocks.size(); first += kBlocksPerLaunch) {
    a.num_blocks = static_cast<int>(std::min<size_t>(kBlocksPerLaunch, p.blocks.size() - first));
    std::copy_n(p.blocks.begin() + first, a.num_blocks, a.blocks);
    std::copy_n(p.host_blocks.begin() + first, a.num_blocks, a.host_blocks);
    run(launch, swap_kernel, 2 * launch.num_sms, kThreads, 0, a);
  }
}

void kv_gather(const Launch& launch, const KvGatherParams& p, const int32_t* slots, int num_slots, float* k, float* v) {
  run(launch, kv_gather_kernel, num_slots, 128, 0, KvLayout(p.kv), p.layer, p.kv_head, p.kv.geometry.head_dim, slots,
      p.kv.k_scale, p.kv.v_scale, k, v);
}

}  // namespace zipage::cuda
