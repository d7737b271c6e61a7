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

// A power of two of lanes, some of them idle for 96 elements, hold a key.
template <int kHeadDim>
struct Lanes {
  static constexpr int kChunks = kHeadDim / kVector;
  static constexpr int kCount = kChunks <= 8 ? 8 : kChunks <= 16 ? 16 : 32;
  static constexpr int kKeys = kWarpSize / kCount;  // keys a warp holds at once
};

template <int kHeadDim>
__device__ __forceinline__ float reduce_key(float v) {
#pragma unroll
  for (int offset = Lanes<kHeadDim>::kCount / 2; offset > 0; offset >>= 1) v += __shfl_xor_sync(kFullMask, v, offset);
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

// A key's elements on their way, and its cosines and sines.
struct RawKey {
  uint4 key;
};
struct Angles {
  uint4 cosine[2], sine[2];
};

template <int kHeadDim>
__device__ __forceinline__ RawKey fetch_key(const KeySource& a, const Place& at) {
  const int c = threadIdx.x % Lanes<kHeadDim>::kCount;
  RawKey raw{};
  if (at.row == nullptr || c >= Lanes<kHeadDim>::kChunks) return raw;
  if (a.source.kv.is_fp8) {
    const uint2 v = reinterpret_cast<const uint2*>(at.row)[c];
    raw.key.x = v.x, raw.key.y = v.y;
  } else {
    raw.key = reinterpret_cast<const uint4*>(at.row)[c];
  }
  return raw;
}

template <int kHeadDim>
__device__ __forceinline__ Angles fetch_angles(const KeySource& a, const Place& at) {
  const int c = threadIdx.x % Lanes<kHeadDim>::kCount, half = a.rotary_dim / (2 * kVector);
  Angles angles{};
  if (a.cos_sin == nullptr || c >= 2 * half) return angles;
  const auto* table = reinterpret_cast<const uint4*>(a.cos_sin + int64_t{at.position} * a.rotary_dim +
                                                     (c < half ? c : c - half) * kVector);
  angles.cosine[0] = table[0], angles.cosine[1] = table[1];
  angles.sine[0] = table[2 * half], angles.sine[1] = table[2 * half + 1];
  return angles;
}

__device__ __forceinline__ void as_floats(const uint4 (&v)[2], float (&out)[kVector]) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    out[4 * i] = __uint_as_float(v[i].x), out[4 * i + 1] = __uint_as_float(v[i].y);
    out[4 * i + 2] = __uint_as_float(v[i].z), out[4 * i + 3] = __uint_as_float(v[i].w);
  }
}

// The lane's elements with RoPE undone. All lanes of the warp call it.
template <int kHeadDim>
__device__ __forceinline__ void undo_rope(const KeySource& a, const RawKey& raw, const Angles& angles,
                                          float (&x)[kVector]) {
  if (a.source.kv.is_fp8) {
    const uint32_t words[2] = {raw.key.x, raw.key.y};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float2 low = fp8x2_to_float2(words[i]), high = fp8x2_to_float2(words[i] >> 16);
      x[4 * i] = low.x, x[4 * i + 1] = low.y, x[4 * i + 2] = high.x, x[4 * i + 3] = high.y;
    }
  } else {
    unpack8(raw.key, x);
  }
  if (a.cos_sin == nullptr) return;
  const int c = threadIdx.x % Lanes<kHeadDim>::kCount, half = a.rotary_dim / (2 * kVector);
  const bool low = c < half, rotates = c < 2 * half;
  const int partner = threadIdx.x % kWarpSize + (!rotates ? 0 : low ? half : -half);
  float cosine[kVector], sine[kVector];
  as_floats(angles.cosine, cosine);
  as_floats(angles.sine, sine);
  // The table's factor on cosines and sines was on k as well.
  const float factor = a.cos_sin[0], scale = 1.0F / (factor * factor);
#pragma unroll
  for (int e = 0; e < kVector; ++e) {
    const float other = __shfl_sync(kFullMask, x[e], partner);
    if (rotates) x[e] = (x[e] * cosine[e] + (low ? other : -other) * sine[e]) * scale;
  }
}

// body(t, x) for the kSlots slots from `first` on, as many at once as the warp holds; kAhead rounds are on their way.
template <int kHeadDim, int kSlots, typename Body>
__device__ __forceinline__ void for_each_key(const KeySource& a, int unit, int first, const Body& body) {
  using L = Lanes<kHeadDim>;
  constexpr int kRounds = kSlots / L::kKeys, kAhead = kRounds < 8 ? kRounds : 8;
  static_assert(kRounds % kAhead == 0);
  const int lane = threadIdx.x % kWarpSize, mine = lane / L::kCount;
  const Place low = place(a, unit, first + lane), high = place(a, unit, first + kWarpSize + lane);
  const auto place_of = [&](int i) {  // of the block's slot i: lane i % 32 knows it
    const bool late = i >= kWarpSize;
    const auto row = reinterpret_cast<uint64_t>(late ? high.row : low.row);
    return Place{reinterpret_cast<const std::byte*>(__shfl_sync(kFullMask, row, i % kWarpSize)),
                 __shfl_sync(kFullMask, late ? high.position : low.position, i % kWarpSize)};
  };
  // Keys come from memory, far ahead; cosines and sines mostly from a cache, one round ahead. All keys of a round lie
  // in the same half of the block, so every lane reads the half that the others offer.
  RawKey ahead[kAhead];
#pragma unroll
  for (int j = 0; j < kAhead; ++j) ahead[j] = fetch_key<kHeadDim>(a, place_of(j * L::kKeys + mine));
  Angles angles = fetch_angles<kHeadDim>(a, place_of(mine));
  for (int round = 0; round < kRounds; round += kAhead) {
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      const int i = (round + j) * L::kKeys + mine, soon = i + L::kKeys, later = i + kAhead * L::kKeys;
      const RawKey raw = ahead[j];
      const Angles now = angles;
      const Place late_place = place_of(later < kSlots ? later : i), soon_place = place_of(soon < kSlots ? soon : i);
      if (later < kSlots) ahead[j] = fetch_key<kHeadDim>(a, late_place);
      if (soon < kSlots) angles = fetch_angles<kHeadDim>(a, soon_place);
      float x[kVector];
      undo_rope<kHeadDim>(a, raw, now, x);
      body(first + i, x);
    }
  }
}

}  // namespace zipage::cuda
