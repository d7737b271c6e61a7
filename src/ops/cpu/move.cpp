// swap, swap_ring, kv_gather: KV between the pool and host memory.
#include <cstring>

#include "base/check.h"
#include "ops/cpu/cpu_backend.h"
#include "ops/cpu/kv_layout.h"

namespace zipage::cpu {
namespace {

void copy(bool to_host, std::byte* host, void* device, size_t bytes) {
  if (to_host) {
    std::memcpy(host, device, bytes);
  } else {
    std::memcpy(device, host, bytes);
  }
}

}  // namespace

// A block on the host: [num_layers] x { K and V | scores [num_kv_heads][block_size] | positions, likewise }.
void CpuBackend::swap(Queue& queue, const SwapParams& params) {
  const KvGeometry& geometry = params.kv.geometry;
  ZIPAGE_CHECK(params.blocks.size() == params.host_blocks.size(), "swap: {} blocks, {} on the host",
               params.blocks.size(), params.host_blocks.size());
  const size_t kv_bytes = kv_bytes_per_block(geometry);
  const size_t slots = static_cast<size_t>(geometry.num_kv_heads) * static_cast<size_t>(geometry.block_size);
  const size_t layer_bytes = kv_bytes + slots * (sizeof(float) + sizeof(int32_t));
  const auto num_blocks = static_cast<int64_t>(params.blocks.size());
  executor(queue).parallel_for(num_blocks * geometry.num_layers, 4, [&](int64_t begin, int64_t end, int) {
    for (int64_t task = begin; task < end; ++task) {
      const auto index = static_cast<size_t>(task / geometry.num_layers);
      const auto layer = static_cast<size_t>(task % geometry.num_layers);
      std::byte* host =
          params.host +
          (static_cast<size_t>(params.host_blocks[index]) * static_cast<size_t>(geometry.num_layers) + layer) *
              layer_bytes;
      const KvLayerView kv(params.kv, static_cast<int>(layer));
      copy(params.to_host, host, kv.keys(params.blocks[index], 0), kv_bytes);
      if (params.kv.scores == nullptr) continue;
      copy(params.to_host, host + kv_bytes, kv.scores(params.blocks[index], 0), slots * sizeof(float));
      copy(params.to_host, host + kv_bytes + slots * sizeof(float), kv.positions(params.blocks[index], 0),
           slots * sizeof(int32_t));
    }
  });
}

void CpuBackend::swap_ring(Queue&, const SwapRingParams& params) {
  ZIPAGE_CHECK(params.query_slot >= 0 && params.query_slot < params.ring.num_query_slots,
               "swap_ring: query slot {} of {}", params.query_slot, params.ring.num_query_slots);
  const size_t bytes =
      static_cast<size_t>(params.ring.window) * static_cast<size_t>(params.row_elements) * sizeof(float);
  for (int layer = 0; layer < params.num_layers; ++layer) {
    const auto slot = static_cast<size_t>(layer) * static_cast<size_t>(params.ring.num_query_slots) +
                      static_cast<size_t>(params.query_slot);
    copy(params.to_host, params.host + static_cast<size_t>(layer) * bytes,
         static_cast<std::byte*>(params.ring.data) + slot * bytes, bytes);
  }
}

void CpuBackend::kv_gather(Queue&, const KvGatherParams& params) {
  const KvLayerView kv(params.kv, params.layer);
  float* k = params.k;
  float* v = params.v;
  for (int32_t slot : params.slots) {
    kv.read_key(slot / kv.block_size(), params.kv_head, slot % kv.block_size(), k);
    kv.read_value(slot / kv.block_size(), params.kv_head, slot % kv.block_size(), v);
    k += kv.head_dim();
    v += kv.head_dim();
  }
}

}  // namespace zipage::cpu
