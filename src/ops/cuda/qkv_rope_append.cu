// QK-norm, RoPE, KV append and the query ring in one pass. A few lanes take a head, 16 bytes each; a block takes a
// token (or a share of its heads), so the token's cosines and sines are read once.
#include "ops/cuda/device.cuh"
#include "ops/cuda/launch.h"

namespace zipage::cuda {
namespace {

// ---- numbers ----
constexpr int kThreads = 128;
constexpr int kVector = 8;  // elements a lane holds

struct Args {
  bf16* qkv;  // [num_tokens, stride]
  int64_t stride;
  int num_heads, rotary_dim, layer, num_ring_rows;
  float eps;
  const float *q_norm, *k_norm, *cos_sin, *k_scale, *v_scale;
  const int32_t *positions, *slot_mapping, *ring_rows;
  KvLayout kv;
  bf16* ring;  // [num_layers, num_query_slots * window, num_heads, head_dim] or null
};

// ---- kernels ----

__device__ __forceinline__ void load8(const float* from, float (&out)[kVector]) {
  const float4 a = reinterpret_cast<const float4*>(from)[0], b = reinterpret_cast<const float4*>(from)[1];
  out[0] = a.x, out[1] = a.y, out[2] = a.z, out[3] = a.w, out[4] = b.x, out[5] = b.y, out[6] = b.z, out[7] = b.w;
}

template <int kHeadDim>
__global__ void __launch_bounds__(kThreads) qkv_rope_append_kernel(const __grid_constant__ Args a) {
  let_next_start();
  constexpr int kChunks = kHeadDim / kVector;
  constexpr int kLanes = kChunks <= 8 ? 8 : kChunks <= 16 ? 16 : 32;  // a power of two, for the exchange between lanes
  constexpr int kHeadsAtOnce = kThreads / kLanes;
  const int64_t token = blockIdx.x;
  const int c = threadIdx.x % kLanes;  // the lane's 8 elements of the head
  const bool active = c < kChunks;
  const int num_kv_heads = a.kv.num_kv_heads, heads = a.num_heads + 2 * num_kv_heads;
  const int slot = a.slot_mapping[token], ring_row = a.ring != nullptr ? a.ring_rows[token] : -1;

  const int half = a.rotary_dim / (2 * kVector);
  const bool rotates = c < 2 * half, low = c < half;
  const int partner = threadIdx.x % kWarpSize + (!rotates ? 0 : low ? half : -half);
  float cosine[kVector] = {}, sine[kVector] = {};
  if (rotates) {
    const float* table = a.cos_sin + int64_t{a.positions[token]} * a.rotary_dim + (low ? c : c - half) * kVector;
    load8(table, cosine);
    load8(table + half * kVector, sine);
    if (low) {
#pragma unroll
      for (int e = 0; e < kVector; ++e) sine[e] = -sine[e];
    }
  }

  const int first = blockIdx.y * kHeadsAtOnce;
  float weight[kVector] = {};  // of the head's norm; the first one's is on its way before there is a row
  const auto norm_of = [&](int head) { return head < a.num_heads ? a.q_norm : a.k_norm; };
  const auto fetch_weight = [&](int head) {
    if (active && norm_of(head) != nullptr) load8(norm_of(head) + c * kVector, weight);
  };
  fetch_weight(first + static_cast<int>(threadIdx.x) / kLanes);

  wait_till_previous_ended();
  for (int base = first; base < heads; base += gridDim.y * kHeadsAtOnce) {
    const int head = base + static_cast<int>(threadIdx.x) / kLanes;
    const bool is_query = head < a.num_heads, is_value = head >= a.num_heads + num_kv_heads;
    auto* at = reinterpret_cast<uint4*>(a.qkv + token * a.stride + int64_t{head} * kHeadDim) + c;
    const bool here = active && head < heads;
    float x[kVector] = {};
    if (here) unpack8(*at, x);
    if (a.q_norm != nullptr || a.k_norm != nullptr) {
      float squares = 0.0F;
#pragma unroll
      for (int e = 0; e < kVector; ++e) squares += x[e] * x[e];
#pragma unroll
      for (int offset = kLanes / 2; offset > 0; offset >>= 1) squares += __shfl_xor_sync(kFullMask, squares, offset);
      if (here && !is_value && norm_of(head) != nullptr) {
        if (base > first) fetch_weight(head);
        const float scale = rsqrtf(squares / static_cast<float>(kHeadDim) + a.eps);
#pragma unroll
        for (int e = 0; e < kVector; ++e) x[e] *= scale * weight[e];
      }
    }
#pragma unroll
    for (int e = 0; e < kVector; ++e) {
      const float other = __shfl_sync(kFullMask, x[e], partner);
      if (rotates && !is_value) x[e] = x[e] * cosine[e] + other * sine[e];
    }
    if (!here) continue;
    if (is_query) {
      const uint4 v = pack8(x);
      *at = v;
      if (ring_row >= 0) {
        const int64_t row = (int64_t{a.layer} * a.num_ring_rows + ring_row) * a.num_heads + head;
        reinterpret_cast<uint4*>(a.ring + row * kHeadDim)[c] = v;
      }
    } else if (slot >= 0) {
      const int kv_head = head - a.num_heads - (is_value ? num_kv_heads : 0);
      std::byte* row = a.kv.key_row(a.layer, slot / a.kv.block_size, kv_head, slot % a.kv.block_size);
      if (is_value) row += a.kv.value_offset;
      if (a.kv.is_fp8) {
        const float inverse = 1.0F / (is_value ? a.v_scale : a.k_scale)[a.layer * num_kv_heads + kv_head];
        uint32_t words[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          words[i] = float2_to_fp8x2(x[4 * i] * inverse, x[4 * i + 1] * inverse) |
                     float2_to_fp8x2(x[4 * i + 2] * inverse, x[4 * i + 3] * inverse) << 16;
        }
        reinterpret_cast<uint2*>(row)[c] = make_uint2(words[0], words[1]);
      } else {
        reinterpret_cast<uint4*>(row)[c] = pack8(x);
      }
    }
  }
}

// ---- launcher ----

template <int kHeadDim>
void launch_append(const Launch& launch, const Args& a, int num_tokens) {
  constexpr int kHeadsAtOnce = kThreads * kVector / (kHeadDim == 96 ? 128 : kHeadDim);
  const int rounds = ceil_div(a.num_heads + 2 * a.kv.num_kv_heads, kHeadsAtOnce);
  // Few tokens: every round a block of its own. Many: a block takes all heads and reads cosines and sines once.
  const int parts = num_tokens < 2 * launch.num_sms ? rounds : 1;
  run(launch, qkv_rope_append_kernel<kHeadDim>, dim3(num_tokens, parts), kThreads, 0, a);
}

}  // namespace

void qkv_rope_append(const Launch& launch, const QkvRopeAppendParams& p) {
  Args a{};
  a.qkv = static_cast<bf16*>(p.qkv.data);
  a.stride = p.qkv.stride;
  a.num_heads = p.num_heads;
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
  dispatch<64, 96, 128, 256>(p.kv.geometry.head_dim,
                             [&]<int kHeadDim>() { launch_append<kHeadDim>(launch, a, p.batch.num_tokens); });
}

}  // namespace zipage::cuda
