// The packed scales of ggml's 4 and 5 bit formats with 256 elements a block.
#pragma once

#include <cstdint>

namespace zipage {

// Eight 6-bit scales and eight 6-bit minima in 12 bytes: the first four of each in the low bits of bytes 0-3 and 4-7,
// the others in nibbles of bytes 8-11 with their top two bits above the first four.
inline void scales_and_minima(const uint8_t* packed, uint8_t* scales, uint8_t* minima) {
  for (int i = 0; i < 4; ++i) {
    scales[i] = packed[i] & 63;
    minima[i] = packed[i + 4] & 63;
    scales[i + 4] = static_cast<uint8_t>((packed[i + 8] & 0x0f) | ((packed[i] >> 6) << 4));
    minima[i + 4] = static_cast<uint8_t>((packed[i + 8] >> 4) | ((packed[i + 4] >> 6) << 4));
  }
}

}  // namespace zipage
