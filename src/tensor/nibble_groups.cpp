#include "tensor/nibble_groups.h"

#include <cstring>

#include "base/check.h"
#include "tensor/f16.h"
#include "tensor/k_scales.h"

namespace zipage {
namespace {

float half_at(const uint8_t* bytes) {
  uint16_t bits;
  std::memcpy(&bits, bytes, sizeof(bits));
  return f16_to_f32(bits);
}

// Low nibbles first, then high ones.
void split(const uint8_t* bytes, int count, uint8_t* low, uint8_t* high) {
  for (int i = 0; i < count; ++i) {
    low[i] = bytes[i] & 0x0f;
    high[i] = bytes[i] >> 4;
  }
}

}  // namespace

bool has_nibble_groups(DType dtype) {
  return dtype == DType::kQ4_0 || dtype == DType::kQ4_1 || dtype == DType::kQ4_K;
}

void read_nibble_groups(const HostTensor& tensor, int64_t first, int64_t count, uint8_t* q, float* scales,
                        float* minima) {
  const DTypeTraits& type = traits(tensor.dtype);
  ZIPAGE_CHECK(has_nibble_groups(tensor.dtype) && first % type.block_elements == 0 && count % type.block_elements == 0,
               "tensor {}: no groups of nibbles at {} + {} of {}", tensor.name, first, count, type.name);
  const int64_t bytes = count / type.block_elements * type.block_bytes;
  const int64_t begin = first / type.block_elements * type.block_bytes;
  ZIPAGE_CHECK(first >= 0 && begin + bytes <= static_cast<int64_t>(tensor.data.size()),
               "tensor {}: elements {} + {} end beyond its {} bytes", tensor.name, first, count, tensor.data.size());
  const auto* block = reinterpret_cast<const uint8_t*>(tensor.data.data()) + begin;
  for (int64_t i = 0; i < count; i += type.block_elements, block += type.block_bytes, q += type.block_elements) {
    if (tensor.dtype == DType::kQ4_0) {
      *scales = half_at(block);
      *minima++ = -8.0F * *scales++;
      split(block + 2, 16, q, q + 16);
    } else if (tensor.dtype == DType::kQ4_1) {
      *scales++ = half_at(block);
      *minima++ = half_at(block + 2);
      split(block + 4, 16, q, q + 16);
    } else {
      uint8_t factors[8], offsets[8];
      scales_and_minima(block + 4, factors, offsets);
      for (int group = 0; group < 8; ++group) {
        *scales++ = half_at(block) * static_cast<float>(factors[group]);
        *minima++ = -half_at(block + 2) * static_cast<float>(offsets[group]);
        if (group % 2 == 0) split(block + 16 + group * 16, 32, q + group * 32, q + group * 32 + 32);
      }
    }
  }
}

}  // namespace zipage
