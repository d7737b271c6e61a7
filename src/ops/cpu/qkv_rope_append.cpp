#include <cstring>

#include "base/check.h"
#include "ops/cpu/cpu_backend.h"
#include "ops/cpu/kernels.h"
#include "ops/cpu/kv_layout.h"

namespace zipage::cpu {

void CpuBackend::qkv_rope_append(Queue& queue, const QkvRopeAppendParams& params) {
  const KvGeometry& geometry = params.kv.geometry;
  const int head_dim = geometry.head_dim;
  ZIPAGE_CHECK(params.qkv.dtype == DType::kF32, "qkv_rope_append: the CPU's activations are f32");
  ZIPAGE_CHECK(params.qkv.cols == static_cast<int64_t>(params.num_heads + 2 * geometry.num_kv_heads) * head_dim,
               "qkv_rope_append: qkv has {} columns for {} + 2 x {} heads of {}", params.qkv.cols, params.num_heads,
               geometry.num_kv_heads, head_dim);
  ZIPAGE_CHECK(params.rotary_dim % 2 == 0 && params.rotary_dim <= head_dim, "qkv_rope_append: {} of {} elements rotate",
               params.rotary_dim, head_dim);
  ZIPAGE_CHECK(params.layer >= 0 && params.layer < geometry.num_layers, "qkv_rope_append: layer {} of {}", params.layer,
               geometry.num_layers);
  const Kernels& kernel = kernels(isa_);
  const KvLayerView kv(params.kv, params.layer);
  const int64_t query_elements = static_cast<int64_t>(params.num_heads) * head_dim;
  float* ring = params.ring.data == nullptr ? nullptr
                                            : static_cast<float*>(params.ring.data) +
                                                  static_cast<int64_t>(params.layer) * params.ring.num_query_slots *
                                                      params.ring.window * query_elements;
  const auto normalise_and_rotate = [&](float* head, const float* norm, const float* cos_sin) {
    if (norm != nullptr) kernel.rms_norm(head, norm, params.norm_eps, head_dim, head);
    kernel.rope(head, cos_sin, params.rotary_dim);
  };
  executor(queue).parallel_for(params.batch.num_tokens, 8, [&](int64_t begin, int64_t end, int) {
    for (int64_t token = begin; token < end; ++token) {
      float* q = static_cast<float*>(params.qkv.data) + token * params.qkv.stride;
      const float* cos_sin = params.cos_sin + static_cast<int64_t>(params.batch.positions[token]) * params.rotary_dim;
      for (int head = 0; head < params.num_heads; ++head) {
        normalise_and_rotate(q + static_cast<int64_t>(head) * head_dim, params.q_norm, cos_sin);
      }
      if (ring != nullptr && params.batch.query_ring_rows[token] >= 0) {
        std::memcpy(ring + params.batch.query_ring_rows[token] * query_elements, q,
                    static_cast<size_t>(query_elements) * sizeof(float));
      }
      const int32_t slot = params.batch.slot_mapping[token];
      if (slot < 0) continue;
      float* k = q + query_elements;
      const float* v = k + static_cast<int64_t>(geometry.num_kv_heads) * head_dim;
      for (int head = 0; head < geometry.num_kv_heads; ++head, k += head_dim, v += head_dim) {
        normalise_and_rotate(k, params.k_norm, cos_sin);
        kv.write_key(slot / geometry.block_size, head, slot % geometry.block_size, k);
        kv.write_value(slot / geometry.block_size, head, slot % geometry.block_size, v);
      }
    }
  });
}

}  // namespace zipage::cpu
