// Sixteen floats at a time, whatever the machine: GCC's generic vectors, with the few operations they lack written for
// the instruction set this file is compiled with. Included by compress_kernels_impl.h alone.
#include <immintrin.h>

#include <cstdint>
#include <cstring>

// Vectors are passed between inlined functions only, so the calling convention never matters.
#pragma GCC diagnostic ignored "-Wpsabi"
#define ZIPAGE_INLINE static inline __attribute__((always_inline))

typedef float F16 __attribute__((vector_size(64)));
typedef int32_t I16 __attribute__((vector_size(64)));

ZIPAGE_INLINE F16 load(const float* p) {
  F16 v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
ZIPAGE_INLINE I16 load(const int32_t* p) {
  I16 v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
ZIPAGE_INLINE void store(float* p, F16 v) {
  std::memcpy(p, &v, sizeof v);
}
ZIPAGE_INLINE F16 splat(float x) {
  return F16{} + x;
}
ZIPAGE_INLINE I16 splat(int32_t x) {
  return I16{} + x;
}
ZIPAGE_INLINE F16 as_float(I16 v) {
  return reinterpret_cast<F16>(v);
}
ZIPAGE_INLINE I16 as_int(F16 v) {
  return reinterpret_cast<I16>(v);
}
ZIPAGE_INLINE F16 max(F16 a, F16 b) {
  return a > b ? a : b;
}
ZIPAGE_INLINE I16 lane_index() {
  return I16{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
}

// a * b + c in one rounding where the machine has it.
ZIPAGE_INLINE F16 fma(F16 a, F16 b, F16 c) {
#if defined(__AVX512F__)
  return reinterpret_cast<F16>(
      _mm512_fmadd_ps(reinterpret_cast<__m512>(a), reinterpret_cast<__m512>(b), reinterpret_cast<__m512>(c)));
#elif defined(__FMA__)
  __m256 x[2], y[2], z[2];
  std::memcpy(x, &a, sizeof x);
  std::memcpy(y, &b, sizeof y);
  std::memcpy(z, &c, sizeof z);
  z[0] = _mm256_fmadd_ps(x[0], y[0], z[0]);
  z[1] = _mm256_fmadd_ps(x[1], y[1], z[1]);
  std::memcpy(&c, z, sizeof c);
  return c;
#else
  return a * b + c;
#endif
}

// Bit i: lane i of a comparison is true.
ZIPAGE_INLINE uint32_t bits(I16 mask) {
#if defined(__AVX512F__)
  return _mm512_movepi32_mask(reinterpret_cast<__m512i>(mask));
#elif defined(__AVX2__)
  __m256 half[2];
  std::memcpy(half, &mask, sizeof half);
  return static_cast<uint32_t>(_mm256_movemask_ps(half[0])) | static_cast<uint32_t>(_mm256_movemask_ps(half[1])) << 8;
#else
  uint32_t all = 0;
  for (int i = 0; i < 16; ++i) all |= (mask[i] != 0 ? 1U : 0U) << i;
  return all;
#endif
}

// Sums in a fixed order, the same on every machine.
ZIPAGE_INLINE float sum(F16 v) {
  float lane[16];
  store(lane, v);
  for (int step = 8; step > 0; step /= 2) {
    for (int i = 0; i < step; ++i) lane[i] += lane[i + step];
  }
  return lane[0];
}
ZIPAGE_INLINE float largest(F16 v) {
  float lane[16];
  store(lane, v);
  for (int step = 8; step > 0; step /= 2) {
    for (int i = 0; i < step; ++i) lane[i] = lane[i] > lane[i + step] ? lane[i] : lane[i + step];
  }
  return lane[0];
}

// e^x for x <= 0 within 2 ulp; 0 below the smallest normal number. Range reduction to |r| <= ln2 / 2, degree 6.
ZIPAGE_INLINE F16 exp_nonpositive(F16 x) {
  const I16 tiny = x < splat(-87.0F);
  x = tiny ? splat(-87.0F) : x;
  const F16 shift = splat(12582912.0F);  // 1.5 * 2^23: adding it rounds to an integer
  const F16 shifted = fma(x, splat(1.44269504088896341F), shift);
  const F16 n = shifted - shift;
  F16 r = fma(n, splat(-0.693145751953125F), x);
  r = fma(n, splat(-1.42860682030941723e-6F), r);
  F16 y = splat(1.0F / 720);
  y = fma(y, r, splat(1.0F / 120));
  y = fma(y, r, splat(1.0F / 24));
  y = fma(y, r, splat(1.0F / 6));
  y = fma(y, r, splat(0.5F));
  y = fma(y, r, splat(1.0F));
  y = fma(y, r, splat(1.0F));
  const I16 exponent = (as_int(shifted) - as_int(shift)) << 23;
  y = as_float(as_int(y) + exponent);
  return tiny ? F16{} : y;
}
