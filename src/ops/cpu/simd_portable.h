// Four lanes in the compiler's own vectors, for any processor.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "tensor/bf16.h"
#include "tensor/f16.h"

namespace zipage::cpu {

struct Portable {
  typedef float F __attribute__((vector_size(16)));
  typedef int32_t I __attribute__((vector_size(16)));
  static constexpr int kWidth = 4;
  static constexpr int kRegisters = 16;

  static F zero() { return F{}; }
  static F set1(float x) { return F{x, x, x, x}; }
  static F load(const float* p) {
    F x;
    std::memcpy(&x, p, sizeof(x));
    return x;
  }
  static void store(float* p, F x) { std::memcpy(p, &x, sizeof(x)); }
  static F add(F a, F b) { return a + b; }
  static F sub(F a, F b) { return a - b; }
  static F mul(F a, F b) { return a * b; }
  static F div(F a, F b) { return a / b; }
  static F fma(F a, F b, F c) { return a * b + c; }
  static F nfma(F a, F b, F c) { return c - a * b; }
  static F max(F a, F b) { return a > b ? a : b; }
  static F round(F x) {
    // Adding 1.5 * 2^23 leaves no room for a fraction; |x| < 2^22 here.
    const F magic = set1(12582912.0F);
    return (x + magic) - magic;
  }
  static float sum(F x) { return (x[0] + x[2]) + (x[1] + x[3]); }
  static float largest(F x) { return std::fmax(std::fmax(x[0], x[2]), std::fmax(x[1], x[3])); }
  static F scale2(F x, F n) {
    const I exponent = (__builtin_convertvector(n, I) + 127) << 23;
    F power;
    std::memcpy(&power, &exponent, sizeof(power));
    return x * power;
  }
  static F zero_below(F x, float limit, F y) { return x < set1(limit) ? zero() : y; }

  static F first_of_pairs(const Bf16* p) { return from_bits(load_bits(p) << 16); }
  static F second_of_pairs(const Bf16* p) { return from_bits(load_bits(p) & static_cast<int32_t>(0xffff0000U)); }
  static void store_pairs(float* p, F first, F second) {
    for (int i = 0; i < kWidth; ++i) {
      p[2 * i] = first[i];
      p[2 * i + 1] = second[i];
    }
  }
  using Words = I;
  static Words load_words(const uint32_t* p) {
    I x;
    std::memcpy(&x, p, sizeof(x));
    return x;
  }
  template <int kIndex>
  static F nibble(Words words) {
    return __builtin_convertvector((words >> (4 * kIndex)) & 15, F);
  }
  static F load_bytes(const int8_t* p) {
    return F{static_cast<float>(p[0]), static_cast<float>(p[1]), static_cast<float>(p[2]), static_cast<float>(p[3])};
  }
  static F load_half(const uint16_t* p) {
    return F{f16_to_f32(p[0]), f16_to_f32(p[1]), f16_to_f32(p[2]), f16_to_f32(p[3])};
  }
  static F load_bf16(const Bf16* p) {
    return F{static_cast<float>(p[0]), static_cast<float>(p[1]), static_cast<float>(p[2]), static_cast<float>(p[3])};
  }

 private:
  static I load_bits(const Bf16* p) {
    I x;
    std::memcpy(&x, p, sizeof(x));
    return x;
  }
  static F from_bits(I x) {
    F y;
    std::memcpy(&y, &x, sizeof(y));
    return y;
  }
};

}  // namespace zipage::cpu
