// exp over vectors, within 1.5 units in the last place; results below the smallest normal number are 0.
#pragma once

namespace zipage::cpu {

constexpr float kExpSmallest = -87.33654F;
constexpr float kExpLargest = 88.37626F;

template <class S>
inline typename S::F exp(typename S::F x) {
  using F = typename S::F;
  // Written so that a NaN passes through max and comes out again.
  const F bounded =
      S::sub(S::zero(), S::max(S::set1(-kExpLargest), S::sub(S::zero(), S::max(S::set1(kExpSmallest), x))));
  const F n = S::round(S::mul(bounded, S::set1(1.44269504088896341F)));
  F r = S::nfma(n, S::set1(0.693359375F), bounded);  // ln 2 in two parts, the first one exact in products
  r = S::nfma(n, S::set1(-2.12194440e-4F), r);
  F p = S::set1(1.9875691500e-4F);
  p = S::fma(p, r, S::set1(1.3981999507e-3F));
  p = S::fma(p, r, S::set1(8.3334519073e-3F));
  p = S::fma(p, r, S::set1(4.1665795894e-2F));
  p = S::fma(p, r, S::set1(1.6666665459e-1F));
  p = S::fma(p, r, S::set1(5.0000001201e-1F));
  p = S::add(S::fma(p, S::mul(r, r), r), S::set1(1.0F));
  return S::zero_below(x, kExpSmallest, S::scale2(p, n));
}

}  // namespace zipage::cpu
