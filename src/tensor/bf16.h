// bfloat16 on the host: storage and exact conversions. Arithmetic is done in fp32.
#pragma once

#include <bit>
#include <cstdint>

namespace zipage {

struct Bf16 {
  uint16_t bits = 0;

  Bf16() = default;
  explicit Bf16(float value) {
    const uint32_t u = std::bit_cast<uint32_t>(value);
    // Round to nearest, ties to even; a NaN stays a (quiet) NaN.
    bits = (u & 0x7fffffffU) > 0x7f800000U ? static_cast<uint16_t>((u >> 16) | 0x40U)
                                           : static_cast<uint16_t>((u + 0x7fffU + ((u >> 16) & 1U)) >> 16);
  }
  explicit operator float() const { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }
};
static_assert(sizeof(Bf16) == 2);

}  // namespace zipage
