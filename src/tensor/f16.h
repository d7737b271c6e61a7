// IEEE half precision to single, exactly, for every one of the 65,536 patterns. Without branches: loops vectorise.
#pragma once

#include <bit>
#include <cstdint>

namespace zipage {

inline float f16_to_f32(uint16_t half) {
  constexpr uint32_t kExponent = 0x7c00U << 13;
  const uint32_t magnitude = (half & 0x7fffU) << 13;
  const uint32_t exponent = magnitude & kExponent;
  // Masks, not choices: the compiler would make branches of those.
  const uint32_t is_subnormal = 0U - static_cast<uint32_t>(exponent == 0);
  const uint32_t is_special = 0U - static_cast<uint32_t>(exponent == kExponent);
  // Rebias the exponent; infinities and NaNs go up by as much again, to fp32's largest.
  constexpr uint32_t kRebias = (127U - 15U) << 23;
  const uint32_t normal = magnitude + kRebias + (kRebias & is_special);
  // A subnormal half is an integer multiple of 2^-24: give it an implicit one, then subtract that one.
  constexpr uint32_t kOne = 113U << 23;
  const float subnormal = std::bit_cast<float>(magnitude + kOne) - std::bit_cast<float>(kOne);
  const uint32_t bits = (std::bit_cast<uint32_t>(subnormal) & is_subnormal) | (normal & ~is_subnormal);
  return std::bit_cast<float>(bits | (static_cast<uint32_t>(half & 0x8000U) << 16));
}

}  // namespace zipage
