// QK-norm, RoPE, KV append and the query ring in one pass. A few lanes take a head, 16 bytes each; a block takes a
// token (or a share of its heads), so the token's cosines and sines are read once.
#include "ops/cuda/device.cuh"
#include "ops/cuda/launch.h"

namespace zipage::cuda {
namespace {

// ---- numbers ----
constexpr int kThreads = 128;
constexpr int kRoundsTogether = 3;  // rounds of heads
constexpr int kVector = 8;          // elements a lane holds

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

// A block takes kTogether rounds of heads at a time, whose rows are on their way together. If that is one, the block's
// only one, what its norm multiplies by is on its way before there is a row.
template <int kHeadDim, int kTogether>
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
  const int group = static_cast<int>(threadIdx.x) / kLanes;
  float weight[kVector] = {};  // of the head's norm
  const auto norm_of = [&](int head) { return head < a.num_heads ? a.q_norm : a.k_norm; };
  const auto fetch_weight = [&](int head) {
    if (active && norm_of(head) != nullptr) load8(norm_of(head) + c * kVector, weight);
  };
  if constexpr (kTogether == 1) fetch_weight(blockIdx.y * kHeadsAtOnce + group);

  const auto at = [&](int head) {
    return reinterpret_cast<uint4*>(a.qkv + token * a.stride + int64_t{head} * kHeadDim) + c;
  };
  const auto append = [&](int head, const uint4& row) {  // head and row of this lane's group
    const bool is_query = head < a.num_heads, is_value = head >= a.num_heads + num_kv_heads;
    const bool here = active && head < heads;
    float x[kVector];
    unpack8(row, x);
    if (a.q_norm != nullptr || a.k_norm != nullptr) {
      float squares = 0.0F;
#pragma unroll
      for (int e = 0; e < kVector; ++e) squares += x[e] * x[e];
#pragma unroll
      for (int offset = kLanes / 2; offset > 0; offset >>= 1) squares += __shfl_xor_sync(kFullMask, squares, offset);
      if (here && !is_value && norm_of(head) != nullptr) {
        if constexpr (kTogether > 1) fetch_weight(head);
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
    if (!here) return;
    if (is_query) {
      const uint4 v = pack8(x);
      *at(head) = v;
      if (ring_row >= 0) {
        const int64_t to = (int64_t{a.layer} * a.num_ring_rows + ring_row) * a.num_heads + head;
        reinterpret_cast<uint4*>(a.ring + to * kHeadDim)[c] = v;
      }
    } else if (slot >= 0) {
      const int kv_head = head - a.num_heads - (is_value ? num_kv_heads : 0);
      std::byte* to = a.kv.key_row(a.layer, slot / a.kv.block_size, kv_head, slot % a.kv.block_size);
      if (is_value) to += a.kv.value_offset;
      if (a.kv.is_fp8) {
        const float inverse = 1.0F / (is_value ? a.v_scale : a.k_scale)[a.layer * num_kv_heads + kv_head];
        uint32_t words[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          words[i] = float2_to_fp8x2(x[4 * i] * inverse, x[4 * i + 1] * inverse) |
                     float2_to_fp8x2(x[4 * i + 2] * inverse, x[4 * i + 3] * inverse) << 16;
        }
        reinterpret_cast<uint2*>(to)[c] = make_uint2(words[0], words[1]);
      } else {
        reinterpret_cast<uint4*>(to)[c] = pack8(x);
      }
    }
  };

  wait_till_previous_ended();
  for (int base = blockIdx.y * kTogether * kHeadsAtOnce; base < heads; base += gridDim.y * kTogether * kHeadsAtOnce) {
    uint4 rows[kTogether];
#pragma unroll
    for (int j = 0; j < kTogether; ++j) {
      const int head = base + j * kHeadsAtOnce + group;
      rows[j] = active && head < heads ? *at(head) : make_uint4(0, 0, 0, 0);
    }
#pragma unroll
    for (int j = 0; j < kTogether; ++j) append(base + j * kHeadsAtOnce + group, rows[j]);
  }
}

// ---- launcher ----

template <int kHeadDim>
void launch_append(const Launch& launch, const Args& a, int num_tokens) {
  constexpr int kHeadsAtOnce = kThreads * kVector / (kHeadDim == 96 ? 128 : kHeadDim);
  const int rounds = ceil_div(a.num_heads + 2 * a.kv.num_kv_heads, kHeadsAtOnce);
  // Few tokens: every round a block of its own. Many: a block takes all heads and reads cosines and sines once.
  const bool few = num_tokens < 2 * launch.num_sms;
  const auto kernel = few ? qkv_rope_append_kernel<kHeadDim, 1> : qkv_rope_append_kernel<kHeadDim, kRoundsTogether>;
  run(launch, kernel, dim3(num_tokens, few ? rounds : 1), kThreads, 0, a);
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
