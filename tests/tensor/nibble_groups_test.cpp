#include "tensor/nibble_groups.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

namespace zipage {
namespace {

TEST(NibbleGroups, AreTheDequantizedElements) {
  std::mt19937 random(1);
  for (DType dtype : {DType::kQ4_0, DType::kQ4_1, DType::kQ4_K}) {
    const DTypeTraits& type = traits(dtype);
    const int64_t count = 3 * 512;
    std::vector<std::byte> bytes(static_cast<size_t>(count / type.block_elements * type.block_bytes));
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random() & 0xff);
    // The two halves at the front of a block are scales: keep them finite.
    for (size_t block = 0; block < bytes.size(); block += static_cast<size_t>(type.block_bytes)) {
      bytes[block + 1] = std::byte{0x2c};
      bytes[block + 3] = std::byte{0x30};
    }
    const HostTensor tensor{.name = "w", .dtype = dtype, .shape = {3, 512}, .data = bytes};
    const int64_t first = 512;
    std::vector<float> expected(1024), scales(32), minima(32);
    std::vector<uint8_t> q(1024);
    dequantize(tensor, first, 1024, expected.data());
    read_nibble_groups(tensor, first, 1024, q.data(), scales.data(), minima.data());
    for (size_t i = 0; i < q.size(); ++i) {
      ASSERT_LE(q[i], 15);
      const float value = static_cast<float>(q[i]) * scales[i / 32] + minima[i / 32];
      ASSERT_NEAR(value, expected[i], 1e-6F * (15 * std::abs(scales[i / 32]) + std::abs(minima[i / 32])))
          << type.name << " " << i;
    }
  }
}

}  // namespace
}  // namespace zipage
