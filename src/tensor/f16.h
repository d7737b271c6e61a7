// IEEE half precision to single, exactly, for every one of the 65,536 patterns. Without branches: loops vectorise.
#pragma once

#include <bit>
#include <cstdint>

namespace zipage {

inline float f16_to_f32(uint16_t half) {
  constexpr uint32_t kExponent = 0x7c00U << 13;
  const uint32_t magnitude = (half & 0x7fffU) << 13;
  const uint32_t exponent = magnitude & kExponent;
  // Rebias the exponent; infinities and NaNs go up to fp32's largest exponent.
  const uint32_t normal = magnitude + ((exponent == kExponent ? 255U - 31U : 127U - 15U) << 23);
  // A subnormal half is an integer multiple of 2^-24: give it an implicit one, then subtract that one.
  const float subnormal = std::bit_cast<float>(magnitude + (113U << 23)) - std::bit_cast<float>(113U << 23);
  const uint32_t bits = exponent == 0 ? std::bit_cast<uint32_t>(subnormal) : normal;
  return std::bit_cast<float>(bits | (static_cast<uint32_t>(half & 0x8000U) << 16));
}

}  // namespace zipage
