// QK-norm, RoPE, KV append and the query ring in one pass: a warp takes one head of one token.
#include "ops/cuda/device.cuh"
#include "ops/cuda/launch.h"

namespace zipage::cuda {
namespace {

// ---- numbers ----
constexpr int kWarps = 8;
constexpr int kMaxPairs = 4;  // 16-bit pairs a lane holds: head_dim up to 256

struct Args {
  bf16* qkv;  // [num_tokens, stride]
  int64_t stride;
  int num_tokens, num_heads, head_dim, rotary_dim, layer, num_ring_rows;
  float eps;
  const float *q_norm, *k_norm, *cos_sin, *k_scale, *v_scale;
  const int32_t *positions, *slot_mapping, *ring_rows;
  KvLayout kv;
  bf16* ring;  // [num_layers, num_query_slots * window, num_heads, head_dim] or null
};

// ---- kernels ----

__device__ __forceinline__ void store_kv(const Args& a, std::byte* row, int pair, float2 v, const float* scales,
                                         int head) {
  if (a.kv.is_fp8) {
    const float inverse = 1.0F / scales[a.layer * a.kv.num_kv_heads + head];
    reinterpret_cast<uint16_t*>(row)[pair] = static_cast<uint16_t>(float2_to_fp8x2(v.x * inverse, v.y * inverse));
  } else {
    reinterpret_cast<uint32_t*>(row)[pair] = pack(v.x, v.y);
  }
}

__global__ void __launch_bounds__(kWarps* kWarpSize) qkv_rope_append_kernel(const Args a) {
  const int lane = threadIdx.x % kWarpSize;
  const int heads = a.num_heads + 2 * a.kv.num_kv_heads;
  const int64_t unit = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarpSize;
  const int token = static_cast<int>(unit / heads);
  const int head = static_cast<int>(unit % heads);
  if (token >= a.num_tokens) return;
  const bool is_query = head < a.num_heads;
  const bool is_value = head >= a.num_heads + a.kv.num_kv_heads;
  const int kv_head = is_value ? head - a.num_heads - a.kv.num_kv_heads : head - a.num_heads;
  const int slot = a.slot_mapping[token];
  if (!is_query && slot < 0) return;

  const int pairs = a.head_dim / 2, rotary_pairs = a.rotary_dim / 2, half_pairs = a.rotary_dim / 4;
  auto* in = reinterpret_cast<uint32_t*>(a.qkv + token * a.stride + int64_t{head} * a.head_dim);
  float2 own[kMaxPairs], partner[kMaxPairs];
  float squares = 0.0F;
#pragma unroll
  for (int j = 0; j < kMaxPairs; ++j) {
    const int c = lane + j * kWarpSize;
    if (c >= pairs) break;
    own[j] = unpack(in[c]);
    squares += own[j].x * own[j].x + own[j].y * own[j].y;
    if (c < rotary_pairs) partner[j] = unpack(in[c < half_pairs ? c + half_pairs : c - half_pairs]);
  }
  __syncwarp();  // every lane has read before any writes in place

  if (!is_value) {
    const float* norm = is_query ? a.q_norm : a.k_norm;
    if (norm != nullptr) {
      const float scale = rsqrtf(warp_reduce<Sum>(squares) / static_cast<float>(a.head_dim) + a.eps);
#pragma unroll
      for (int j = 0; j < kMaxPairs; ++j) {
        const int c = lane + j * kWarpSize;
        if (c >= pairs) break;
        const float2 w = reinterpret_cast<const float2*>(norm)[c];
        own[j].x *= scale * w.x, own[j].y *= scale * w.y;
        if (c < rotary_pairs) {
          const float2 v = reinterpret_cast<const float2*>(norm)[c < half_pairs ? c + half_pairs : c - half_pairs];
          partner[j].x *= scale * v.x, partner[j].y *= scale * v.y;
        }
      }
    }
    const float* table = a.cos_sin + int64_t{a.positions[token]} * a.rotary_dim;
#pragma unroll
    for (int j = 0; j < kMaxPairs; ++j) {
      const int c = lane + j * kWarpSize;
      if (c >= rotary_pairs) break;
      const int angle = c < half_pairs ? c : c - half_pairs;
      const float2 cosine = reinterpret_cast<const float2*>(table)[angle];
      float2 sine = reinterpret_cast<const float2*>(table)[half_pairs + angle];
      if (c < half_pairs) sine.x = -sine.x, sine.y = -sine.y;
      own[j].x = own[j].x * cosine.x + partner[j].x * sine.x;
      own[j].y = own[j].y * cosine.y + partner[j].y * sine.y;
    }
  }

  if (is_query) {
    const int ring_row = a.ring != nullptr ? a.ring_rows[token] : -1;
    const int64_t row = (int64_t{a.layer} * a.num_ring_rows + ring_row) * a.num_heads + head;
    auto* ring = reinterpret_cast<uint32_t*>(a.ring + row * a.head_dim);
#pragma unroll
    for (int j = 0; j < kMaxPairs; ++j) {
      const int c = lane + j * kWarpSize;
      if (c >= pairs) break;
      const uint32_t v = pack(own[j].x, own[j].y);
      in[c] = v;
      if (ring_row >= 0) ring[c] = v;
    }
  } else {
    std::byte* row = a.kv.key_row(a.layer, slot / a.kv.block_size, kv_head, slot % a.kv.block_size);
    if (is_value) row += a.kv.value_offset;
#pragma unroll
    for (int j = 0; j < kMaxPairs; ++j) {
      const int c = lane + j * kWarpSize;
      if (c >= pairs) break;
      store_kv(a, row, c, own[j], is_value ? a.v_scale : a.k_scale, kv_head);
    }
  }
}

}  // namespace

// ---- launcher ----

void qkv_rope_append(const Launch& launch, const QkvRopeAppendParams& p) {
  Args a{};
  a.qkv = static_cast<bf16*>(p.qkv.data);
  a.stride = p.qkv.stride;
  a.num_tokens = p.batch.num_tokens;
  a.num_heads = p.num_heads;
  a.head_dim = p.kv.geometry.head_dim;
  a.rotary_dim = p.rotary_dim;
  a.layer = p.layer;
  a.num_ring_rows = p.ring.num_query_slots * p.ring.window;
  a.eps = p.norm_eps;
  a.q_norm = p.q_norm;
  a.k_norm = p.k_norm;
  a.cos_sin = p.cos_sin;
  a.k_scale = p.kv.k_scale;
  a.v_scale = p.kv.v_scale;
  a.positions = p.batch.positions;
  a.slot_mapping = p.batch.slot_mapping;
  a.ring_rows = p.batch.query_ring_rows;
  a.kv = KvLayout(p.kv);
  a.ring = static_cast<bf16*>(p.ring.data);
  const int64_t units = int64_t{p.batch.num_tokens} * (p.num_heads + 2 * p.kv.geometry.num_kv_heads);
  qkv_rope_append_kernel<<<static_cast<unsigned>(ceil_div(units, int64_t{kWarps})), kWarps * kWarpSize, 0,
                           launch.stream>>>(a);
}

}  // namespace zipage::cuda
