// A sequence's keys one after the other in fp32, as they lie in the cache or with RoPE undone at each slot's position.
#pragma once

#include "ops/cuda/compress_source.cuh"

namespace zipage::cuda {

inline constexpr int kVector = 8;  // elements a lane holds of a key

struct KeySource {
  Source source;
  const float* cos_sin;  // [max_position, rotary_dim] or null: keys as they lie in the cache
  int rotary_dim;
};

// How the lanes of a warp hold keys: kCount lanes a key, kVectors vectors a lane, vector j of lane c being elements
// [8 (c + j kCount), + 8). Wide: few lanes with many elements each, so that both halves of a rotated pair lie in one
// lane; it needs the whole head rotated, or none of it. Else a lane holds one vector (some lanes none, for 96
// elements).
template <int kHeadDim, bool kWide>
struct Lanes {
  static constexpr int kChunks = kHeadDim / kVector;
  static constexpr int kNarrow = kChunks <= 8 ? 8 : kChunks <= 16 ? 16 : 32;
  static constexpr int kCount = kWide ? (kChunks > 16 ? 8 : 4) : kNarrow;
  static constexpr int kVectors = kWide ? kChunks / kCount : 1;
  static constexpr int kKeys = kWarpSize / kCount;  // keys a warp holds at once
  static_assert(!kWide || (kVectors * kCount == kChunks && kVectors % 2 == 0));
};

// Sum over the lanes of a key.
template <typename L>
__device__ __forceinline__ float reduce_key(float v) {
#pragma unroll
  for (int offset = L::kCount / 2; offset > 0; offset >>= 1) v += __shfl_xor_sync(kFullMask, v, offset);
  return v;
}

// Where a key lies, and its position: known to a lane before it is read.
struct Place {
  const std::byte* row;
  int position;
};

__device__ __forceinline__ Place place(const KeySource& a, int unit, int t) {
  if (t >= a.source.num_slots) return {nullptr, 0};
  return {a.source.key_row(unit, t), a.cos_sin != nullptr ? a.source.position(unit, t) : 0};
}

template <typename L>
struct RawKey {
  uint4 vectors[L::kVectors];
};

template <typename L>
__device__ __forceinline__ RawKey<L> fetch_key(const KeySource& a, const Place& at) {
  const int c = threadIdx.x % L::kCount;
  RawKey<L> raw{};
  if (at.row == nullptr || c >= L::kChunks) return raw;
#pragma unroll
  for (int j = 0; j < L::kVectors; ++j) {
    if (a.source.kv.is_fp8) {
      const uint2 v = reinterpret_cast<const uint2*>(at.row)[c + j * L::kCount];
      raw.vectors[j] = make_uint4(v.x, v.y, 0, 0);
    } else {
      raw.vectors[j] = reinterpret_cast<const uint4*>(at.row)[c + j * L::kCount];
    }
  }
  return raw;
}

// Cosines and sines of vector `chunk` of a head's first half at a position.
struct Angles {
  float cosine[kVector], sine[kVector];
};

__device__ __forceinline__ Angles fetch_angles(const KeySource& a, int position, int chunk) {
  const auto* table = reinterpret_cast<const float4*>(a.cos_sin + int64_t{position} * a.rotary_dim) + 2 * chunk;
  const float4* sines = table + a.rotary_dim / 8;
  Angles angles;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float4 c = table[i], s = sines[i];
    angles.cosine[4 * i] = c.x, angles.cosine[4 * i + 1] = c.y, angles.cosine[4 * i + 2] = c.z,
                      angles.cosine[4 * i + 3] = c.w;
    angles.sine[4 * i] = s.x, angles.sine[4 * i + 1] = s.y, angles.sine[4 * i + 2] = s.z, angles.sine[4 * i + 3] = s.w;
  }
  return angles;
}

__device__ __forceinline__ void widen(const KeySource& a, const uint4& raw, float (&x)[kVector]) {
  if (a.source.kv.is_fp8) {
    const uint32_t words[2] = {raw.x, raw.y};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float2 low = fp8x2_to_float2(words[i]), high = fp8x2_to_float2(words[i] >> 16);
      x[4 * i] = low.x, x[4 * i + 1] = low.y, x[4 * i + 2] = high.x, x[4 * i + 3] = high.y;
    }
  } else {
    unpack8(raw, x);
  }
}

// The lane's elements with RoPE undone: x' = x cos + y sin, y' = y cos - x sin for the two halves of a pair. All lanes
// of the warp call it.
template <typename L, bool kWide>
__device__ __forceinline__ void undo_rope(const KeySource& a, const RawKey<L>& raw, int position,
                                          float (&x)[L::kVectors][kVector]) {
#pragma unroll
  for (int j = 0; j < L::kVectors; ++j) widen(a, raw.vectors[j], x[j]);
  if (a.cos_sin == nullptr) return;
  const int c = threadIdx.x % L::kCount, half = a.rotary_dim / (2 * kVector);
  if constexpr (kWide) {
    constexpr int kPairs = L::kVectors / 2;
#pragma unroll
    for (int j = 0; j < kPairs; ++j) {
      const Angles angles = fetch_angles(a, position, c + j * L::kCount);
#pragma unroll
      for (int e = 0; e < kVector; ++e) {
        const float low = x[j][e], high = x[j + kPairs][e];
        x[j][e] = fmaf(low, angles.cosine[e], high * angles.sine[e]);
        x[j + kPairs][e] = fmaf(high, angles.cosine[e], -low * angles.sine[e]);
      }
    }
  } else {
    const bool low = c < half, rotates = c < 2 * half;
    const int partner = threadIdx.x % kWarpSize + (!rotates ? 0 : low ? half : -half);
    const Angles angles = fetch_angles(a, position, !rotates ? 0 : low ? c : c - half);
#pragma unroll
    for (int e = 0; e < kVector; ++e) {
      const float other = __shfl_sync(kFullMask, x[0][e], partner);
      if (rotates) x[0][e] = fmaf(x[0][e], angles.cosine[e], (low ? other : -other) * angles.sine[e]);
    }
  }
  // The table's factor on cosines and sines was on k as well.
  const float factor = a.cos_sin[0];
  if (factor != 1.0F && c < 2 * half) {
    const float scale = 1.0F / (factor * factor);
#pragma unroll
    for (int j = 0; j < L::kVectors; ++j) {
#pragma unroll
      for (int e = 0; e < kVector; ++e) x[j][e] *= scale;
    }
  }
}

// body(t, x) for the kSlots slots from `first` on, as many at once as the warp holds; the keys of kAhead rounds are on
// their way, while cosines and sines mostly come from a cache.
template <int kHeadDim, bool kWide, int kSlots, typename Body>
__device__ __forceinline__ void for_each_key(const KeySource& a, int unit, int first, const Body& body) {
  using L = Lanes<kHeadDim, kWide>;
  constexpr int kRounds = kSlots / L::kKeys, kAhead = kWide ? 2 : kRounds < 8 ? kRounds : 8;
  static_assert(kRounds % kAhead == 0 && kSlots == 2 * kWarpSize);
  const int lane = threadIdx.x % kWarpSize, mine = lane / L::kCount;
  const Place low = place(a, unit, first + lane), high = place(a, unit, first + kWarpSize + lane);
  // Of the block's slot i: lane i % 32 knows it. All keys of a round lie in the same half of the block, so every lane
  // reads the half that the others offer.
  const auto place_of = [&](int i) {
    const bool late = i >= kWarpSize;
    const auto row = reinterpret_cast<uint64_t>(late ? high.row : low.row);
    return Place{reinterpret_cast<const std::byte*>(__shfl_sync(kFullMask, row, i % kWarpSize)),
                 __shfl_sync(kFullMask, late ? high.position : low.position, i % kWarpSize)};
  };
  RawKey<L> ahead[kAhead];
  int positions[kAhead];
#pragma unroll
  for (int j = 0; j < kAhead; ++j) {
    const Place at = place_of(j * L::kKeys + mine);
    ahead[j] = fetch_key<L>(a, at);
    positions[j] = at.position;
  }
  for (int round = 0; round < kRounds; round += kAhead) {
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      const int i = (round + j) * L::kKeys + mine, later = i + kAhead * L::kKeys;
      const RawKey<L> raw = ahead[j];
      const int position = positions[j];
      const Place at = place_of(later < kSlots ? later : i);
      if (later < kSlots) ahead[j] = fetch_key<L>(a, at);
      positions[j] = at.position;
      float x[L::kVectors][kVector];
      undo_rope<L, kWide>(a, raw, position, x);
      body(first + i, x);
    }
  }
}

}  // namespace zipage::cuda
