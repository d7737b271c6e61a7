// Kernels over rows of logits: what sampling must do for every token of the vocabulary.
//
// The plain loops are vectorised by the compiler for the instruction set that the including file is compiled for.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>

#include "ops/cpu/kernels.h"
#include "ops/sample_noise.h"

namespace zipage::cpu {

template <class S>
void finite_copy(const float* x, int64_t n, float* out) {
  for (int64_t i = 0; i < n; ++i) {
    const bool finite = (std::bit_cast<uint32_t>(x[i]) & 0x7fffffffU) < 0x7f800000U;
    out[i] = finite ? x[i] : -std::numeric_limits<float>::infinity();
  }
}

template <class S>
float largest_of(const float* x, int64_t n) {
  float top = -std::numeric_limits<float>::infinity();
  int64_t i = 0;
  if (n >= S::kWidth) {
    typename S::F tops = S::load(x);
    for (i = S::kWidth; i + S::kWidth <= n; i += S::kWidth) tops = S::max(tops, S::load(x + i));
    top = S::largest(tops);
  }
  for (; i < n; ++i) top = x[i] > top ? x[i] : top;
  return top;
}

template <class S>
void block_maxima(const float* x, int64_t n, float* maxima) {
  for (int64_t i = 0; i < n; i += kLogitBlock)
    maxima[i / kLogitBlock] = largest_of<S>(x + i, std::min(kLogitBlock, n - i));
}

template <class S>
void shift_scale(float* x, int64_t n, float shift, float factor) {
  for (int64_t i = 0; i < n; ++i) x[i] = (x[i] - shift) * factor;
}

// The noise -log(-log(1 - u)) is at most -log(u), and log2(u) at least what the bits of a float say when they are read
// as a fixed-point number: no logarithm is needed to see that a token cannot win.
template <class S>
float noise_bound(const float* x, int64_t n, uint32_t first_id, SampleNoiseKey key) {
  constexpr float kLn2 = 0.693147181F;
  float bounds[kLogitBlock];
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t bits = sample_noise_bits(key, first_id + static_cast<uint32_t>(i));
    const auto exact = static_cast<float>(static_cast<int32_t>(bits >> 8));
    const auto log2_plus_127 = static_cast<float>(std::bit_cast<int32_t>(exact)) * 0x1p-23F;
    bounds[i] = x[i] + ((24.0F + 127.0F) - log2_plus_127) * kLn2 + 1e-3F;
  }
  return largest_of<S>(bounds, n);
}

}  // namespace zipage::cpu
