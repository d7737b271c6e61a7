// What a warp of decode attention does: its query heads, tiles of K and V, and where the step's tokens are appended on
// the way, their norm, rotation and place in the pool.
#pragma once

#include "ops/cuda/attention_decode_line.cuh"

namespace zipage::cuda {

// ---- numbers ----
inline constexpr int kTile = 16;  // slots a tile
inline constexpr int kMaxWarps = 8;
inline constexpr int kHeadsPerTile = 8;  // columns of one tensor-core tile

template <bool kFp8, int kHeadDim, int kHeadTiles>
struct DecodeShape {
  static constexpr int kRowBytes = kHeadDim * (kFp8 ? 1 : 2);
  static constexpr int kStageBytes = 2 * kTile * kRowBytes;  // K tile, V tile
  static constexpr int kStages = kHeadTiles > 1 && kHeadDim > 64 ? 2 : kStageBytes <= 4096 ? 5 : 3;
  static constexpr int kWarps = kStageBytes > 8192 ? 4 : kMaxWarps;
  static constexpr int kSteps = kHeadDim / 16;
  // Tiles that a unit's end is worth.
  static constexpr int kUnitCost = kUnitBytes / kStageBytes;
};

template <bool kFp8, int kHeadDim, int kHeadTiles>
struct DecodeWarp {
  using S = DecodeShape<kFp8, kHeadDim, kHeadTiles>;
  using Math = std::conditional_t<kFp8, HalfMath, Bf16Math>;
  static constexpr int kSteps = S::kSteps;

  uint32_t q[kHeadTiles][kSteps][2];  // B fragments of Q^T, [head_dim, heads]
  float out[kSteps][kHeadTiles][4];   // O^T, [head_dim, heads]
  float maximum[kHeadTiles][2];       // of the lane's two heads
  float sum[kHeadTiles][2];           // this lane's slots only
  float scale_log2;                   // softmax scale and log2(e), and for fp8 K's scale
  // The new token's K (half the warp) or V (the other half), 8 elements a lane and pass: as they came, the elements
  // that these turn with, and as they are stored.
  static constexpr int kLanes = kWarpSize / 2, kParts = kHeadDim / 8, kPasses = ceil_div(kParts, kLanes);
  uint4 incoming[kPasses], partners[kPasses];
  std::conditional_t<kFp8, uint2, uint4> appended[kPasses];

  __device__ void reset() {
#pragma unroll
    for (int n = 0; n < kHeadTiles; ++n) {
      maximum[n][0] = maximum[n][1] = -INFINITY;
      sum[n][0] = sum[n][1] = 0.0F;
#pragma unroll
      for (int m = 0; m < kSteps; ++m) {
#pragma unroll
        for (int i = 0; i < 4; ++i) out[m][n][i] = 0.0F;
      }
    }
  }

  // Word i of step k of a head: where its first element lies. fp8: a 32-bit word of a K row feeds both halves of a
  // fragment, so the element order within 16 is permuted; Q follows.
  __device__ static int element(int k, int i) {
    const int t = threadIdx.x % 4;
    return k * 16 + (kFp8 ? 4 * t + 2 * i : 2 * t + 8 * i);
  }

  // Starts the loads: bf16 as they lie there. A decode's token bears its sequence's number.
  __device__ void load_query(const DecodeArgs& a, int seq, int kv_head) {
    const bf16* base = a.q + int64_t{seq} * a.q_stride + int64_t{kv_head} * a.group * kHeadDim;
#pragma unroll
    for (int n = 0; n < kHeadTiles; ++n) {
      const int head = n * kHeadsPerTile + threadIdx.x % kWarpSize / 4;
#pragma unroll
      for (int k = 0; k < kSteps; ++k) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          q[n][k][i] = head < a.group ? *reinterpret_cast<const uint32_t*>(base + head * kHeadDim + element(k, i)) : 0;
        }
      }
    }
  }

  __device__ static bool appends_value() {
    return threadIdx.x % kWarpSize >= kLanes;
  }
  __device__ static int partner_of(int part) {
    return part < kParts / 2 ? part + kParts / 2 : part - kParts / 2;
  }

  // The same of the token's K and V.
  __device__ void load_slot(const DecodeArgs& a, int seq, int kv_head) {
    const int head = a.num_heads + (appends_value() ? a.kv.num_kv_heads : 0) + kv_head;
    const auto* from = reinterpret_cast<const uint4*>(a.q + int64_t{seq} * a.q_stride + int64_t{head} * kHeadDim);
#pragma unroll
    for (int j = 0; j < kPasses; ++j) {
      const int part = threadIdx.x % kLanes + j * kLanes;
      incoming[j] = part < kParts ? from[part] : make_uint4(0, 0, 0, 0);
      partners[j] = part < kParts ? from[partner_of(part)] : make_uint4(0, 0, 0, 0);
    }
  }
  // Brings what the rotations need into the nearest cache.
  __device__ static void prefetch_angles(const DecodeArgs& a, int position) {
    prefetch_head(a.append.cos_sin + int64_t{position} * kHeadDim);
  }
  __device__ static void prefetch_norms(const DecodeArgs& a) {
    if (a.append.q_norm != nullptr) prefetch_head(a.append.q_norm);
    if (a.append.k_norm != nullptr) prefetch_head(a.append.k_norm);
  }
  __device__ static void prefetch_head(const float* from) {
    const int lane = threadIdx.x % kWarpSize;
    if (lane < kHeadDim / 32) prefetch_near(from + lane * 32);
  }

  // Norm and rotation, of bf16 to bf16. One warp of a unit records what comes out.
  __device__ void rotate_query(const DecodeArgs& a, int seq, int kv_head, int position, bool records) {
    constexpr int kHalf = kHeadDim / 2;
    const AppendArgs& append = a.append;
    const float* cosines = append.cos_sin + int64_t{position} * kHeadDim;
    const int ring_row = records && append.ring != nullptr ? append.ring_rows[seq] : -1;
    const auto two = [](const float* from) { return *reinterpret_cast<const float2*>(from); };
#pragma unroll
    for (int n = 0; n < kHeadTiles; ++n) {
      float scale = 1.0F;
      if (append.q_norm != nullptr) {
        float squares = 0.0F;
#pragma unroll
        for (int k = 0; k < kSteps; ++k) {
          const float2 x = unpack(q[n][k][0]), y = unpack(q[n][k][1]);
          squares += x.x * x.x + x.y * x.y + y.x * y.x + y.y * y.y;
        }
        squares += __shfl_xor_sync(kFullMask, squares, 1);
        squares += __shfl_xor_sync(kFullMask, squares, 2);
        scale = rsqrtf(squares / static_cast<float>(kHeadDim) + append.eps);
      }
#pragma unroll
      for (int k = 0; k < kSteps / 2; ++k) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int e = element(k, i);
          float2 x = unpack(q[n][k][i]), y = unpack(q[n][k + kSteps / 2][i]);
          if (append.q_norm != nullptr) {
            const float2 v = two(append.q_norm + e), w = two(append.q_norm + kHalf + e);
            x.x *= scale * v.x, x.y *= scale * v.y, y.x *= scale * w.x, y.y *= scale * w.y;
          }
          const float2 c = two(cosines + e), s = two(cosines + kHalf + e);
          q[n][k][i] = pack(x.x * c.x - y.x * s.x, x.y * c.y - y.y * s.y);
          q[n][k + kSteps / 2][i] = pack(y.x * c.x + x.x * s.x, y.y * c.y + x.y * s.y);
        }
      }
      const int head = n * kHeadsPerTile + threadIdx.x % kWarpSize / 4;
      if (ring_row < 0 || head >= a.group) continue;
      bf16* to = append.ring + ((int64_t{a.layer} * append.num_ring_rows + ring_row) * a.num_heads +
                                int64_t{kv_head} * a.group + head) *
                                   kHeadDim;
#pragma unroll
      for (int k = 0; k < kSteps; ++k) {
        *reinterpret_cast<uint32_t*>(to + element(k, 0)) = q[n][k][0];
        *reinterpret_cast<uint32_t*>(to + element(k, 1)) = q[n][k][1];
      }
    }
  }

  // Of what load_query brought, the fragments.
  __device__ void convert_query() {
    static_assert(kFp8);
#pragma unroll
    for (int n = 0; n < kHeadTiles; ++n) {
#pragma unroll
      for (int k = 0; k < kSteps; ++k) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float2 x = unpack(q[n][k][i]);
          q[n][k][i] = pack_half(x.x, x.y);
        }
      }
    }
  }

  // What load_slot brought, normalised, rotated and into the pool.
  __device__ void append_slot(const DecodeArgs& a, int seq, int kv_head, int position) {
    const AppendArgs& append = a.append;
    const bool is_value = appends_value(), normalises = append.k_norm != nullptr;
    float x[kPasses][8];
    float squares = 0.0F;
#pragma unroll
    for (int j = 0; j < kPasses; ++j) {
      unpack8(incoming[j], x[j]);
#pragma unroll
      for (int e = 0; e < 8; ++e) squares += x[j][e] * x[j][e];
    }
#pragma unroll
    for (int offset = kLanes / 2; offset > 0; offset >>= 1) squares += __shfl_xor_sync(kFullMask, squares, offset);
    const float scale = normalises ? rsqrtf(squares / static_cast<float>(kHeadDim) + append.eps) : 1.0F;
    const int slot = append.slot_mapping[seq];
    std::byte* to = slot < 0 ? nullptr
                             : a.kv.key_row(a.layer, slot / a.kv.block_size, kv_head, slot % a.kv.block_size) +
                                   (is_value ? a.kv.value_offset : 0);
#pragma unroll
    for (int j = 0; j < kPasses; ++j) {
      const int part = threadIdx.x % kLanes + j * kLanes;
      if (part >= kParts) break;
      if (!is_value) {
        const bool low = part < kParts / 2;
        const int partner = partner_of(part);
        float other[8];
        unpack8(partners[j], other);
        const float* cosines = append.cos_sin + int64_t{position} * kHeadDim + (low ? part : partner) * 8;
#pragma unroll
        for (int e = 0; e < 8; ++e) {
          const float own_weight = normalises ? scale * append.k_norm[part * 8 + e] : 1.0F;
          const float other_weight = normalises ? scale * append.k_norm[partner * 8 + e] : 1.0F;
          const float sine = cosines[kHeadDim / 2 + e];
          x[j][e] = x[j][e] * own_weight * cosines[e] + other[e] * other_weight * (low ? -sine : sine);
        }
      }
      if constexpr (kFp8) {
        const float inverse = 1.0F / (is_value ? a.v_scale : a.k_scale)[a.layer * a.kv.num_kv_heads + kv_head];
        uint32_t words[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          words[i] = float2_to_fp8x2(x[j][4 * i] * inverse, x[j][4 * i + 1] * inverse) |
                     float2_to_fp8x2(x[j][4 * i + 2] * inverse, x[j][4 * i + 3] * inverse) << 16;
        }
        appended[j] = make_uint2(words[0], words[1]);
        if (to != nullptr) reinterpret_cast<uint2*>(to)[part] = appended[j];
      } else {
        appended[j] = pack8(x[j]);
        if (to != nullptr) reinterpret_cast<uint4*>(to)[part] = appended[j];
      }
    }
  }
  // The same into row `row` of the tiles in shared memory.
  __device__ void place_slot(int row, std::byte* keys, std::byte* values) const {
    std::byte* tile = appends_value() ? values : keys;
#pragma unroll
    for (int j = 0; j < kPasses; ++j) {
      const int part = threadIdx.x % kLanes + j * kLanes;
      if (part >= kParts) break;
      if constexpr (kFp8) {
        *reinterpret_cast<uint2*>(tile + swizzle<S::kRowBytes>(row, part / 2) + part % 2 * 8) = appended[j];
      } else {
        *reinterpret_cast<uint4*>(tile + swizzle<S::kRowBytes>(row, part)) = appended[j];
      }
    }
  }

  // One tile from shared memory: scores, running softmax, output. `valid` slots of it count.
  __device__ void compute(uint32_t keys, uint32_t values, int valid) {
    const int lane = threadIdx.x % kWarpSize;
    float s[kHeadTiles][4] = {};
    if constexpr (kFp8) {
#pragma unroll
      for (int k = 0; k < kSteps; k += 2) {
        uint32_t words[4];  // (slots 0-7, step k), (slots 8-15, step k), the same of step k + 1
        load_matrices(words, keys + swizzle<S::kRowBytes>(lane & 15, k + (lane >> 4)));
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const uint32_t low = words[2 * half], high = words[2 * half + 1];
          const uint32_t fragment[4] = {fp8x2_to_half2(low), fp8x2_to_half2(high), fp8x2_to_half2(low >> 16),
                                        fp8x2_to_half2(high >> 16)};
#pragma unroll
          for (int n = 0; n < kHeadTiles; ++n) mma<Math>(s[n], fragment, q[n][k + half][0], q[n][k + half][1]);
        }
      }
    } else {
#pragma unroll
      for (int k = 0; k < kSteps; ++k) {
        uint32_t fragment[4];
        load_matrices(fragment, keys + swizzle<S::kRowBytes>(lane & 15, 2 * k + (lane >> 4)));
#pragma unroll
        for (int n = 0; n < kHeadTiles; ++n) mma<Math>(s[n], fragment, q[n][k][0], q[n][k][1]);
      }
    }

    const int slot = lane / 4;
    uint32_t p[kHeadTiles][2];
    bool grew = false;
    float next[kHeadTiles][2];
#pragma unroll
    for (int n = 0; n < kHeadTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const bool seen = slot + (i / 2) * 8 < valid;
        s[n][i] = seen ? s[n][i] * scale_log2 : -INFINITY;
      }
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        float m = fmaxf(s[n][c], s[n][c + 2]);
        m = fmaxf(m, __shfl_xor_sync(kFullMask, m, 4));
        m = fmaxf(m, __shfl_xor_sync(kFullMask, m, 8));
        m = fmaxf(m, __shfl_xor_sync(kFullMask, m, 16));
        next[n][c] = fmaxf(maximum[n][c], m);
        grew |= next[n][c] > maximum[n][c];
      }
    }
    if (__any_sync(kFullMask, grew)) {
#pragma unroll
      for (int n = 0; n < kHeadTiles; ++n) {
        // Equal maxima, both -inf at the start included, keep what is there.
        const float f0 = next[n][0] > maximum[n][0] ? exp2_fast(maximum[n][0] - next[n][0]) : 1.0F;
        const float f1 = next[n][1] > maximum[n][1] ? exp2_fast(maximum[n][1] - next[n][1]) : 1.0F;
        sum[n][0] *= f0, sum[n][1] *= f1;
#pragma unroll
        for (int m = 0; m < kSteps; ++m) {
          out[m][n][0] *= f0, out[m][n][1] *= f1, out[m][n][2] *= f0, out[m][n][3] *= f1;
        }
        maximum[n][0] = next[n][0], maximum[n][1] = next[n][1];
      }
    }
#pragma unroll
    for (int n = 0; n < kHeadTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float m = maximum[n][i % 2];
        s[n][i] = m == -INFINITY ? 0.0F : exp2_fast(s[n][i] - m);
        sum[n][i % 2] += s[n][i];
      }
      p[n][0] = transpose_matrix(Math::pair(s[n][0], s[n][1]));
      p[n][1] = transpose_matrix(Math::pair(s[n][2], s[n][3]));
    }

    const int matrix = lane / 8, row = (matrix / 2) * 8 + lane % 8;
    if constexpr (kFp8) {
#pragma unroll
      for (int m = 0; m < kSteps; m += 2) {
        uint32_t words[4];  // (slots 0-7, step m), (slots 0-7, step m + 1), the same of slots 8-15
        load_matrices_transposed(words, values + swizzle<S::kRowBytes>(row, m + matrix % 2));
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const uint32_t low = words[half], high = words[half + 2];
          // A word holds elements 2g, 2g+1 of two slots; row g of the output takes 2g, row g + 8 takes 2g + 1.
          const uint32_t fragment[4] = {
              fp8x2_to_half2(__byte_perm(low, 0, 0x4420)), fp8x2_to_half2(__byte_perm(low, 0, 0x4431)),
              fp8x2_to_half2(__byte_perm(high, 0, 0x4420)), fp8x2_to_half2(__byte_perm(high, 0, 0x4431))};
#pragma unroll
          for (int n = 0; n < kHeadTiles; ++n) mma<Math>(out[m + half][n], fragment, p[n][0], p[n][1]);
        }
      }
    } else {
#pragma unroll
      for (int m = 0; m < kSteps; ++m) {
        uint32_t fragment[4];
        load_matrices_transposed(fragment, values + swizzle<S::kRowBytes>(row, 2 * m + matrix % 2));
#pragma unroll
        for (int n = 0; n < kHeadTiles; ++n) mma<Math>(out[m][n], fragment, p[n][0], p[n][1]);
      }
    }
  }

  // The unit's share of this warp into shared memory: out [group, head_dim], stats [group].
  __device__ void leave(float* shared_out, float2* shared_stats, int group) {
    const int lane = threadIdx.x % kWarpSize, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int n = 0; n < kHeadTiles; ++n) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        float total = sum[n][c];
        total += __shfl_xor_sync(kFullMask, total, 4);
        total += __shfl_xor_sync(kFullMask, total, 8);
        total += __shfl_xor_sync(kFullMask, total, 16);
        const int head = n * kHeadsPerTile + 2 * t + c;
        if (head >= group) continue;
        if (g == 0) shared_stats[head] = make_float2(maximum[n][c], total);
#pragma unroll
        for (int m = 0; m < kSteps; ++m) {
          float* to = shared_out + head * kHeadDim + m * 16;
          if constexpr (kFp8) {
            to[2 * g] = out[m][n][c], to[2 * g + 1] = out[m][n][c + 2];
          } else {
            to[g] = out[m][n][c], to[g + 8] = out[m][n][c + 2];
          }
        }
      }
    }
  }
};

}  // namespace zipage::cuda
