#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "tensor/bf16.h"
#include "tensor/f16.h"
#include "tensor/host_tensor.h"

namespace zipage {
namespace {

// ---- references in double, one element at a time, from the formats' definitions ----

double half(const uint8_t* bytes) {
  const int sign = bytes[1] >> 7, exponent = (bytes[1] >> 2) & 31, mantissa = ((bytes[1] & 3) << 8) | bytes[0];
  double value = 0;
  if (exponent == 31) {
    value = mantissa == 0 ? INFINITY : NAN;
  } else if (exponent == 0) {
    value = std::ldexp(mantissa, -24);
  } else {
    value = std::ldexp(1024 + mantissa, exponent - 25);
  }
  return sign != 0 ? -value : value;
}

int nibble(const uint8_t* bytes, int i, int elements) {  // the first half of the elements lies in the low nibbles
  return i < elements / 2 ? bytes[i] & 15 : bytes[i - elements / 2] >> 4;
}
int bit(const uint8_t* bytes, int i) {
  return (bytes[i / 8] >> (i % 8)) & 1;
}

// A value and the magnitudes that it is the difference of: rounding errors are relative to those.
struct Expected {
  double value, magnitude;
};
Expected scaled(double d, int q) {
  return {d * q, std::abs(d * q)};
}
Expected affine(double d, int q, double m) {
  return {d * q + m, std::abs(d * q) + std::abs(m)};
}

Expected q4_0(const uint8_t* b, int i) {
  return scaled(half(b), nibble(b + 2, i, 32) - 8);
}
Expected q4_1(const uint8_t* b, int i) {
  return affine(half(b), nibble(b + 4, i, 32), half(b + 2));
}
Expected q5_0(const uint8_t* b, int i) {
  return scaled(half(b), nibble(b + 6, i, 32) + 16 * bit(b + 2, i) - 16);
}
Expected q5_1(const uint8_t* b, int i) {
  return affine(half(b), nibble(b + 8, i, 32) + 16 * bit(b + 4, i), half(b + 2));
}
Expected q8_0(const uint8_t* b, int i) {
  return scaled(half(b), static_cast<int8_t>(b[2 + i]));
}

// Scale (which = 0) or minimum (which = 1) of a group of 32.
int six_bits(const uint8_t* packed, int group, int which) {
  if (group < 4) return packed[group + 4 * which] % 64;
  const int low = which == 0 ? packed[group + 4] % 16 : packed[group + 4] / 16;
  return low + 16 * (packed[group - 4 + 4 * which] / 64);
}
Expected k_affine(const uint8_t* b, int i, int q) {
  return affine(half(b) * six_bits(b + 4, i / 32, 0), q, -half(b + 2) * six_bits(b + 4, i / 32, 1));
}
Expected q4_k(const uint8_t* b, int i) {
  return k_affine(b, i, nibble(b + 16 + i / 64 * 32, i % 64, 64));
}
Expected q5_k(const uint8_t* b, int i) {
  return k_affine(b, i, nibble(b + 48 + i / 64 * 32, i % 64, 64) + 16 * ((b[16 + i % 32] >> (i / 32)) & 1));
}
Expected q6_k(const uint8_t* b, int i) {
  const int within = i % 128, row = within / 32;
  const uint8_t low = b[i / 128 * 64 + within % 64];
  const int high = (b[128 + i / 128 * 32 + within % 32] >> (2 * row)) & 3;
  const int q = (row < 2 ? low & 15 : low >> 4) + 16 * high - 32;
  return scaled(half(b + 208) * static_cast<int8_t>(b[192 + i / 16]), q);
}

struct Format {
  DType dtype;
  Expected (*element)(const uint8_t*, int);
  std::vector<int> halves;  // byte offsets of fp16 fields
};
const Format kFormats[] = {
    {DType::kQ4_0, q4_0, {0}}, {DType::kQ4_1, q4_1, {0, 2}}, {DType::kQ5_0, q5_0, {0}},    {DType::kQ5_1, q5_1, {0, 2}},
    {DType::kQ8_0, q8_0, {0}}, {DType::kQ4_K, q4_k, {0, 2}}, {DType::kQ5_K, q5_k, {0, 2}}, {DType::kQ6_K, q6_k, {208}},
};

HostTensor tensor_over(const std::vector<uint8_t>& bytes, DType dtype) {
  const int64_t blocks = static_cast<int64_t>(bytes.size()) / traits(dtype).block_bytes;
  return {.name = "test",
          .dtype = dtype,
          .shape = {blocks * traits(dtype).block_elements},
          .data = std::as_bytes(std::span(bytes))};
}

std::vector<float> expand(const HostTensor& tensor, int64_t first, int64_t count) {
  std::vector<float> values(static_cast<size_t>(count));
  dequantize(tensor, first, count, values.data());
  return values;
}

TEST(Dequantize, EveryBlockFormatEqualsItsDefinition) {
  std::mt19937 random(1);
  for (const Format& format : kFormats) {
    const DTypeTraits& type = traits(format.dtype);
    SCOPED_TRACE(type.name);
    std::vector<uint8_t> bytes(static_cast<size_t>(type.block_bytes) * 50);
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
    for (size_t block = 0; block < bytes.size(); block += static_cast<size_t>(type.block_bytes)) {
      for (const int field : format.halves) bytes[block + static_cast<size_t>(field) + 1] &= 0xbb;  // finite scales
    }
    const std::vector<float> values = expand(tensor_over(bytes, format.dtype), 0, 50 * type.block_elements);
    for (int i = 0; i < 50 * type.block_elements; ++i) {
      const uint8_t* block = bytes.data() + i / type.block_elements * type.block_bytes;
      const Expected expected = format.element(block, i % type.block_elements);
      ASSERT_NEAR(values[static_cast<size_t>(i)], expected.value, expected.magnitude * 3 * 0x1p-24 + 1e-45)
          << "element " << i;
    }
  }
}

std::vector<uint8_t> from_hex(const std::string& hex) {
  std::vector<uint8_t> bytes;
  for (size_t i = 0; i < hex.size(); i += 2)
    bytes.push_back(static_cast<uint8_t>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  return bytes;
}

TEST(Dequantize, EveryBlockFormatEqualsTheGgufPackageBitForBit) {
  std::ifstream file(ZIPAGE_SOURCE_DIR "/tests/data/tensor/block_vectors.txt");
  int formats = 0;
  for (std::string name, blocks, values; file >> name >> blocks >> values; ++formats) {
    SCOPED_TRACE(name);
    const auto* format = std::find_if(std::begin(kFormats), std::end(kFormats),
                                      [&](const Format& f) { return traits(f.dtype).name == name; });
    ASSERT_NE(format, std::end(kFormats));
    const std::vector<uint8_t> bytes = from_hex(blocks), expected_bytes = from_hex(values);
    const HostTensor tensor = tensor_over(bytes, format->dtype);
    ASSERT_EQ(expected_bytes.size(), static_cast<size_t>(tensor.rows()) * sizeof(float));
    const std::vector<float> actual = expand(tensor, 0, tensor.rows());
    for (size_t i = 0; i < actual.size(); ++i) {
      float expected;
      std::memcpy(&expected, expected_bytes.data() + i * sizeof(float), sizeof(float));
      ASSERT_EQ(actual[i], expected) << "element " << i;
    }
  }
  EXPECT_EQ(formats, 8);
}

TEST(Dequantize, PartsEqualTheWhole) {
  std::mt19937 random(2);
  std::vector<uint8_t> bytes(static_cast<size_t>(traits(DType::kQ4_1).block_bytes) * 9);
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random()) & 0x3f;
  const HostTensor tensor = tensor_over(bytes, DType::kQ4_1);
  const std::vector<float> whole = expand(tensor, 0, 9 * 32);
  const std::vector<float> part = expand(tensor, 3 * 32, 4 * 32);
  EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + 3 * 32));
}

TEST(Dequantize, PlainTypesKeepTheirValues) {
  const std::vector<float> values = {0.0F, -0.0F, 1.5F, -3.25F, 65504.0F, 0x1p-14F};
  std::vector<uint8_t> f32(values.size() * 4), bf16(values.size() * 2);
  std::memcpy(f32.data(), values.data(), f32.size());
  for (size_t i = 0; i < values.size(); ++i) {
    const Bf16 rounded(values[i]);
    std::memcpy(bf16.data() + 2 * i, &rounded, sizeof(rounded));
  }
  EXPECT_EQ(expand(tensor_over(f32, DType::kF32), 0, 6), values);
  EXPECT_EQ(expand(tensor_over(f32, DType::kF32), 2, 2), (std::vector<float>{1.5F, -3.25F}));
  const std::vector<float> from_bf16 = expand(tensor_over(bf16, DType::kBF16), 0, 6);
  for (size_t i = 0; i < values.size(); ++i) EXPECT_EQ(from_bf16[i], static_cast<float>(Bf16(values[i])));
  const std::vector<uint8_t> f16 = {0x00, 0x3c, 0x00, 0xc0};
  EXPECT_EQ(expand(tensor_over(f16, DType::kF16), 0, 2), (std::vector<float>{1.0F, -2.0F}));
}

TEST(F16, EveryPatternEqualsItsDefinition) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const uint8_t bytes[] = {static_cast<uint8_t>(bits), static_cast<uint8_t>(bits >> 8)};
    const double expected = half(bytes);
    const float actual = f16_to_f32(static_cast<uint16_t>(bits));
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(actual)) << bits;
    } else {
      ASSERT_EQ(std::bit_cast<uint32_t>(actual), std::bit_cast<uint32_t>(static_cast<float>(expected))) << bits;
    }
  }
}

TEST(Bf16, RoundsToNearestEven) {
  std::mt19937 random(3);
  for (int i = 0; i < 200000; ++i) {
    const float value = std::bit_cast<float>(static_cast<uint32_t>(random()));
    const float rounded = static_cast<float>(Bf16(value));
    if (std::isnan(value)) {
      ASSERT_TRUE(std::isnan(rounded));
      continue;
    }
    // The neighbours in bf16, and the even one of two equally near.
    const float down = std::bit_cast<float>(std::bit_cast<uint32_t>(value) & 0xffff0000U);
    const float up = std::bit_cast<float>((std::bit_cast<uint32_t>(value) & 0xffff0000U) + 0x10000U);
    const double to_down = std::abs(static_cast<double>(value) - down);
    const double to_up = std::isinf(up) ? std::abs(std::ldexp(1.0, 128) - std::abs(static_cast<double>(value)))
                                        : std::abs(static_cast<double>(up) - value);
    const bool down_is_even = (std::bit_cast<uint32_t>(down) >> 16) % 2 == 0;
    ASSERT_EQ(rounded, to_down < to_up || (to_down == to_up && down_is_even) ? down : up) << value;
  }
}

}  // namespace
}  // namespace zipage
