#include <array>
#include <cstring>

#include "base/check.h"
#include "tensor/bf16.h"
#include "tensor/f16.h"
#include "tensor/host_tensor.h"
#include "tensor/k_scales.h"

// Each format's block is what ggml defines; products and sums are rounded to fp32 in ggml's order, so the results are
// the same bit for bit.

namespace zipage {
namespace {

float half_at(const uint8_t* bytes) {
  uint16_t bits;
  std::memcpy(&bits, bytes, sizeof(bits));
  return f16_to_f32(bits);
}

// ---- 32 elements a block, one scale ----

// [d f16][16 bytes]: low nibbles are elements 0-15, high nibbles 16-31.
void q4_0(const uint8_t* block, float* out) {
  const float d = half_at(block);
  const uint8_t* q = block + 2;
  for (int i = 0; i < 16; ++i) {
    out[i] = static_cast<float>((q[i] & 0x0f) - 8) * d;
    out[i + 16] = static_cast<float>((q[i] >> 4) - 8) * d;
  }
}

// [d f16][m f16][16 bytes]
void q4_1(const uint8_t* block, float* out) {
  const float d = half_at(block), m = half_at(block + 2);
  const uint8_t* q = block + 4;
  for (int i = 0; i < 16; ++i) {
    out[i] = static_cast<float>(q[i] & 0x0f) * d + m;
    out[i + 16] = static_cast<float>(q[i] >> 4) * d + m;
  }
}

// Nibbles with their fifth bits: bit i of `high` belongs to element i. A table instead of shifts by i, which SSE2 has
// not.
constexpr auto kBits = [] {
  std::array<uint32_t, 32> bits{};
  for (uint32_t i = 0; i < 32; ++i) bits[i] = 1U << i;
  return bits;
}();

void five_bits(const uint8_t* high, const uint8_t* q, int* out) {
  uint32_t word;
  std::memcpy(&word, high, sizeof(word));
  for (int i = 0; i < 16; ++i) {
    out[i] = q[i] & 0x0f;
    out[i + 16] = q[i] >> 4;
  }
  for (int i = 0; i < 32; ++i) out[i] += (word & kBits[static_cast<size_t>(i)]) != 0 ? 16 : 0;
}

// [d f16][4 bytes of fifth bits][16 bytes]
void q5_0(const uint8_t* block, float* out) {
  const float d = half_at(block);
  int q[32];
  five_bits(block + 2, block + 6, q);
  for (int i = 0; i < 32; ++i) out[i] = static_cast<float>(q[i] - 16) * d;
}

// [d f16][m f16][4 bytes of fifth bits][16 bytes]
void q5_1(const uint8_t* block, float* out) {
  const float d = half_at(block), m = half_at(block + 2);
  int q[32];
  five_bits(block + 4, block + 8, q);
  for (int i = 0; i < 32; ++i) out[i] = static_cast<float>(q[i]) * d + m;
}

// [d f16][32 signed bytes]
void q8_0(const uint8_t* block, float* out) {
  const float d = half_at(block);
  const int8_t* q = reinterpret_cast<const int8_t*>(block + 2);
  for (int i = 0; i < 32; ++i) out[i] = static_cast<float>(q[i]) * d;
}

// ---- 256 elements a block, scales within scales ----

// [d f16][dmin f16][12 bytes of scales][128 bytes]: each 32 bytes hold two groups of 32, low nibbles first.
void q4_k(const uint8_t* block, float* out) {
  const float d = half_at(block), dmin = half_at(block + 2);
  uint8_t scales[8], minima[8];
  scales_and_minima(block + 4, scales, minima);
  const uint8_t* q = block + 16;
  for (int group = 0; group < 8; group += 2, q += 32, out += 64) {
    const float d_low = d * scales[group], m_low = dmin * minima[group];
    const float d_high = d * scales[group + 1], m_high = dmin * minima[group + 1];
    for (int i = 0; i < 32; ++i) {
      out[i] = d_low * static_cast<float>(q[i] & 0x0f) - m_low;
      out[i + 32] = d_high * static_cast<float>(q[i] >> 4) - m_high;
    }
  }
}

// As q4_k with [32 bytes] before the 128: bit g of byte i is the fifth bit of element i of group g.
void q5_k(const uint8_t* block, float* out) {
  const float d = half_at(block), dmin = half_at(block + 2);
  uint8_t scales[8], minima[8];
  scales_and_minima(block + 4, scales, minima);
  const uint8_t* high = block + 16;
  const uint8_t* q = block + 48;
  for (int group = 0; group < 8; group += 2, q += 32, out += 64) {
    const float d_low = d * scales[group], m_low = dmin * minima[group];
    const float d_high = d * scales[group + 1], m_high = dmin * minima[group + 1];
    for (int i = 0; i < 32; ++i) {
      out[i] = d_low * static_cast<float>((q[i] & 0x0f) + (((high[i] >> group) & 1) << 4)) - m_low;
      out[i + 32] = d_high * static_cast<float>((q[i] >> 4) + (((high[i] >> (group + 1)) & 1) << 4)) - m_high;
    }
  }
}

// [128 bytes of low nibbles][64 bytes of high bit pairs][16 signed scales][d f16]. Each half (128 elements) has four
// rows of 32: row r takes nibble r / 2 of byte i + 32 (r mod 2) and pair r of high byte i; a scale covers 16 elements.
template <int kRow>
void q6_k_row(const uint8_t* low, const uint8_t* high, const int8_t* scales, float d, float* out) {
  const uint8_t* nibbles = low + 32 * (kRow & 1);
  for (int part = 0; part < 2; ++part) {
    const float scale = d * static_cast<float>(scales[2 * kRow + part]);
    for (int i = 16 * part; i < 16 * part + 16; ++i) {
      const int q = ((nibbles[i] >> (kRow < 2 ? 0 : 4)) & 0x0f) | (((high[i] >> (2 * kRow)) & 3) << 4);
      out[32 * kRow + i] = scale * static_cast<float>(q - 32);
    }
  }
}

void q6_k(const uint8_t* block, float* out) {
  const uint8_t* low = block;
  const uint8_t* high = block + 128;
  const int8_t* scales = reinterpret_cast<const int8_t*>(block + 192);
  const float d = half_at(block + 208);
  for (int half = 0; half < 2; ++half, low += 64, high += 32, scales += 8, out += 128) {
    q6_k_row<0>(low, high, scales, d, out);
    q6_k_row<1>(low, high, scales, d, out);
    q6_k_row<2>(low, high, scales, d, out);
    q6_k_row<3>(low, high, scales, d, out);
  }
}

template <auto Expand>
void expand_blocks(const uint8_t* block, const DTypeTraits& type, int64_t count, float* out) {
  for (int64_t i = 0; i < count; i += type.block_elements, block += type.block_bytes) Expand(block, out + i);
}

}  // namespace

void dequantize(const HostTensor& tensor, int64_t first, int64_t count, float* out) {
  const DTypeTraits& type = traits(tensor.dtype);
  ZIPAGE_CHECK(first >= 0 && count >= 0 && first % type.block_elements == 0 && count % type.block_elements == 0,
               "tensor {}: elements {} + {} don't lie on blocks of {}", tensor.name, first, count, type.block_elements);
  const size_t begin = static_cast<size_t>(first / type.block_elements) * static_cast<size_t>(type.block_bytes);
  const size_t bytes = static_cast<size_t>(count / type.block_elements) * static_cast<size_t>(type.block_bytes);
  ZIPAGE_CHECK(begin <= tensor.data.size() && bytes <= tensor.data.size() - begin,
               "tensor {}: elements {} + {} end beyond its {} bytes", tensor.name, first, count, tensor.data.size());
  const uint8_t* source = reinterpret_cast<const uint8_t*>(tensor.data.data()) + begin;
  switch (tensor.dtype) {
    case DType::kF32:
      if (bytes > 0) std::memcpy(out, source, bytes);
      return;
    case DType::kF16:
      for (int64_t i = 0; i < count; ++i) out[i] = half_at(source + 2 * i);
      return;
    case DType::kBF16:
      for (int64_t i = 0; i < count; ++i) {
        Bf16 value;
        std::memcpy(&value, source + 2 * i, sizeof(value));
        out[i] = static_cast<float>(value);
      }
      return;
    case DType::kQ4_0:
      return expand_blocks<q4_0>(source, type, count, out);
    case DType::kQ4_1:
      return expand_blocks<q4_1>(source, type, count, out);
    case DType::kQ5_0:
      return expand_blocks<q5_0>(source, type, count, out);
    case DType::kQ5_1:
      return expand_blocks<q5_1>(source, type, count, out);
    case DType::kQ8_0:
      return expand_blocks<q8_0>(source, type, count, out);
    case DType::kQ4_K:
      return expand_blocks<q4_k>(source, type, count, out);
    case DType::kQ5_K:
      return expand_blocks<q5_k>(source, type, count, out);
    case DType::kQ6_K:
      return expand_blocks<q6_k>(source, type, count, out);
    default:
      ZIPAGE_CHECK(false, "tensor {}: {} is no type of weights", tensor.name, type.name);
  }
}

}  // namespace zipage
