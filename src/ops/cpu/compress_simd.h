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
// Not F16{} + x: the compiler may not drop the addition, which turns -0 into 0.
ZIPAGE_INLINE F16 splat(float x) {
  return F16{x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x};
}
ZIPAGE_INLINE I16 splat(int32_t x) {
  return I16{x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x};
}
ZIPAGE_INLINE F16 as_float(I16 v) {
  return reinterpret_cast<F16>(v);
}
ZIPAGE_INLINE I16 as_int(F16 v) {
  return reinterpret_cast<I16>(v);
}
ZIPAGE_INLINE I16 lane_index() {
  return I16{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
}

// b where either is NaN. The machine's instruction by name: a comparison and a choice cost two.
ZIPAGE_INLINE F16 max(F16 a, F16 b) {
#if defined(__AVX512F__)
  return reinterpret_cast<F16>(_mm512_max_ps(reinterpret_cast<__m512>(a), reinterpret_cast<__m512>(b)));
#elif defined(__AVX__)
  __m256 x[2], y[2];
  std::memcpy(x, &a, sizeof x);
  std::memcpy(y, &b, sizeof y);
  x[0] = _mm256_max_ps(x[0], y[0]);
  x[1] = _mm256_max_ps(x[1], y[1]);
  std::memcpy(&a, x, sizeof a);
  return a;
#else
  return a > b ? a : b;
#endif
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

ZIPAGE_INLINE F16 square_root(F16 v) {
#if defined(__AVX512F__)
  return reinterpret_cast<F16>(_mm512_sqrt_ps(reinterpret_cast<__m512>(v)));
#else
  float lane[16];
  store(lane, v);
  for (float& x : lane) x = __builtin_sqrtf(x);
  return load(lane);
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

// Sums in a fixed order, the same on every machine: each step folds the upper half of the lanes onto the lower.
template <typename Fold>
ZIPAGE_INLINE float fold(F16 v, Fold&& f) {
  v = f(v, __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7));
  v = f(v, __builtin_shufflevector(v, v, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3));
  v = f(v, __builtin_shufflevector(v, v, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1));
  v = f(v, __builtin_shufflevector(v, v, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0));
  return v[0];
}
ZIPAGE_INLINE float sum(F16 v) {
  return fold(v, [](F16 a, F16 b) { return a + b; });
}
ZIPAGE_INLINE float largest(F16 v) {
  return fold(v, [](F16 a, F16 b) { return max(a, b); });
}

// 2^x for x <= 0, relative error 2e-7; 2^-126 for everything below -126. The polynomial is fitted to the relative error
// on [-1/2, 1/2].
ZIPAGE_INLINE F16 exp2_nonpositive(F16 x) {
  x = max(x, splat(-126.0F));
  const F16 shift = splat(12582912.0F);  // 1.5 * 2^23: adding it rounds to an integer
  const F16 shifted = x + shift;
  const F16 r = x - (shifted - shift);
  F16 y = splat(0.00132765F);
  y = fma(y, r, splat(0.00967554F));
  y = fma(y, r, splat(0.05550713F));
  y = fma(y, r, splat(0.2402212F));
  y = fma(y, r, splat(0.69314697F));
  y = fma(y, r, splat(1.0F));
  return as_float(as_int(y) + (as_int(shifted) << 23));
}

// v[i][j] <-> v[j][i]: four rounds that each interleave the first half of the rows with the second.
ZIPAGE_INLINE void transpose(F16 (&v)[16]) {
  for (int round = 0; round < 4; ++round) {
    F16 next[16];
    for (int i = 0; i < 8; ++i) {
      next[2 * i] = __builtin_shufflevector(v[i], v[i + 8], 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
      next[2 * i + 1] =
          __builtin_shufflevector(v[i], v[i + 8], 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
    }
    for (int i = 0; i < 16; ++i) v[i] = next[i];
  }
}
