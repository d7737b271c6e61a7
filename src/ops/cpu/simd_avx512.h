// AVX-512 as the kernel templates see it; the same names in simd_avx2.h and simd_portable.h.
#pragma once

#include <immintrin.h>

#include "tensor/bf16.h"

namespace zipage::cpu {

struct Avx512 {
  using F = __m512;
  static constexpr int kWidth = 16;      // floats of one F
  static constexpr int kRegisters = 32;  // that the processor has

  static F zero() { return _mm512_setzero_ps(); }
  static F set1(float x) { return _mm512_set1_ps(x); }
  static F load(const float* p) { return _mm512_loadu_ps(p); }
  static void store(float* p, F x) { _mm512_storeu_ps(p, x); }
  static F add(F a, F b) { return _mm512_add_ps(a, b); }
  static F sub(F a, F b) { return _mm512_sub_ps(a, b); }
  static F mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static F div(F a, F b) { return _mm512_div_ps(a, b); }
  static F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }    // a * b + c
  static F nfma(F a, F b, F c) { return _mm512_fnmadd_ps(a, b, c); }  // c - a * b
  static F max(F a, F b) { return _mm512_max_ps(a, b); }              // b when one is NaN
  static F round(F x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  static float sum(F x) { return _mm512_reduce_add_ps(x); }
  static float largest(F x) { return _mm512_reduce_max_ps(x); }
  // x * 2^n for whole n with a normal result.
  static F scale2(F x, F n) { return _mm512_scalef_ps(x, n); }
  // 0 where x < limit, else y.
  static F zero_below(F x, float limit, F y) {
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, _mm512_set1_ps(limit), _CMP_NLT_UQ), y);
  }

  // kWidth pairs of bf16, 4 bytes each: the first or the second of each pair.
  static F first_of_pairs(const Bf16* p) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(p), 16)); }
  static F second_of_pairs(const Bf16* p) {
    return _mm512_castsi512_ps(
        _mm512_and_si512(_mm512_loadu_si512(p), _mm512_set1_epi32(static_cast<int>(0xffff0000U))));
  }
  static void store_pairs(float* p, F first, F second) {
    const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    const __m512i high = _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
    _mm512_storeu_ps(p, _mm512_permutex2var_ps(first, low, second));
    _mm512_storeu_ps(p + 16, _mm512_permutex2var_ps(first, high, second));
  }
  using Words = __m512i;  // kWidth words of eight nibbles
  static Words load_words(const uint32_t* p) { return _mm512_loadu_si512(p); }
  template <int kIndex>
  static F nibble(Words words) {
    // A permutation looks at the low four bits of its index alone, and its table turns them into floats at once.
    const F table = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    return _mm512_permutexvar_ps(_mm512_srli_epi32(words, 4 * kIndex), table);
  }
  static F load_bytes(const int8_t* p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
  }
  static F load_half(const uint16_t* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static F load_bf16(const Bf16* p) {
    const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
  }
};

}  // namespace zipage::cpu
