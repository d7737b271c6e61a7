// Kernels over one row: norms, rotation, activation, sums of exponentials. Lengths need not be multiples of a vector.
#pragma once

#include <cmath>

#include "ops/cpu/kernels.h"
#include "ops/cpu/simd_math.h"

namespace zipage::cpu {

template <class S>
void rms_norm_row(const float* x, const float* weight, float eps, int64_t n, float* y) {
  using F = typename S::F;
  F squares[2] = {S::zero(), S::zero()};
  int64_t i = 0;
  for (; i + 2 * S::kWidth <= n; i += 2 * S::kWidth) {
    const F a = S::load(x + i);
    const F b = S::load(x + i + S::kWidth);
    squares[0] = S::fma(a, a, squares[0]);
    squares[1] = S::fma(b, b, squares[1]);
  }
  float sum = S::sum(S::add(squares[0], squares[1]));
  for (; i < n; ++i) sum += x[i] * x[i];
  const float factor = 1.0F / std::sqrt(sum / static_cast<float>(n) + eps);
  const F factors = S::set1(factor);
  for (i = 0; i + S::kWidth <= n; i += S::kWidth) {
    S::store(y + i, S::mul(S::mul(S::load(x + i), factors), S::load(weight + i)));
  }
  for (; i < n; ++i) y[i] = x[i] * factor * weight[i];
}

template <class S>
void add_row(const float* x, float* sum, int64_t n) {
  int64_t i = 0;
  for (; i + S::kWidth <= n; i += S::kWidth) S::store(sum + i, S::add(S::load(sum + i), S::load(x + i)));
  for (; i < n; ++i) sum[i] += x[i];
}

template <class S>
void silu_mul_row(const float* gate, const float* up, int64_t n, float* out) {
  using F = typename S::F;
  const F one = S::set1(1.0F);
  int64_t i = 0;
  for (; i + S::kWidth <= n; i += S::kWidth) {
    const F g = S::load(gate + i);
    const F denominator = S::add(one, exp<S>(S::sub(S::zero(), g)));
    S::store(out + i, S::mul(S::div(g, denominator), S::load(up + i)));
  }
  for (; i < n; ++i) out[i] = gate[i] / (1.0F + std::exp(-gate[i])) * up[i];
}

template <class S>
void rope_row(float* x, const float* cos_sin, int rotary_dim) {
  using F = typename S::F;
  const int half = rotary_dim / 2;
  int i = 0;
  for (; i + S::kWidth <= half; i += S::kWidth) {
    const F c = S::load(cos_sin + i);
    const F s = S::load(cos_sin + half + i);
    const F a = S::load(x + i);
    const F b = S::load(x + half + i);
    S::store(x + i, S::nfma(b, s, S::mul(a, c)));
    S::store(x + half + i, S::fma(a, s, S::mul(b, c)));
  }
  for (; i < half; ++i) {
    const float a = x[i];
    const float b = x[half + i];
    x[i] = a * cos_sin[i] - b * cos_sin[half + i];
    x[half + i] = b * cos_sin[i] + a * cos_sin[half + i];
  }
}

template <class S>
double exp_sum_row(const float* x, float shift, int64_t n) {
  using F = typename S::F;
  const F shifts = S::set1(shift);
  double total = 0;
  int64_t i = 0;
  // fp32 within a stretch, double across: a vocabulary is long.
  constexpr int64_t kStretch = 1024;
  while (i + S::kWidth <= n) {
    F sum = S::zero();
    const int64_t end = i + kStretch < n ? i + kStretch : n;
    for (; i + S::kWidth <= end; i += S::kWidth) sum = S::add(sum, exp<S>(S::sub(S::load(x + i), shifts)));
    total += static_cast<double>(S::sum(sum));
  }
  for (; i < n; ++i) total += static_cast<double>(std::exp(x[i] - shift));
  return total;
}

}  // namespace zipage::cpu
