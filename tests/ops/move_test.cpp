#include <gtest/gtest.h>

#include "ops/device.h"
#include "ops/noise.h"
#include "ops/paged_kv.h"
#include "ops/random.h"
#include "tensor/bf16.h"

namespace zipage::test {
namespace {

class MoveTest : public OpTest {};

TEST_P(MoveTest, SwappedBlocksComeBackBitForBitInOtherBlocks) {
  Random random(1);
  const KvGeometry geometry{3, 12, 32, 2, 64, DType::kBF16};
  PagedKv kv(device, geometry, true);
  const std::vector<int32_t> table{7, 2, 10}, back{0, 11, 5}, on_host{4, 0, 2};
  for (int layer = 0; layer < geometry.num_layers; ++layer) {
    kv.write(layer, table, 0, random.normals(96 * 2 * 64), random.normals(96 * 2 * 64));
  }
  const size_t entries = 3 * 12 * 2 * 32;
  std::vector<float> scores = random.normals(static_cast<int64_t>(entries));
  std::vector<int32_t> positions(entries);
  for (size_t i = 0; i < entries; ++i) positions[i] = static_cast<int32_t>(i * 7);
  device.upload(kv.pool().scores, scores.data(), entries * sizeof(float));
  device.upload(kv.pool().positions, positions.data(), entries * sizeof(int32_t));

  const size_t block_bytes = device.backend().swap_bytes_per_block(geometry);
  auto host = device.backend().allocate(5 * block_bytes, "swap", MemoryKind::kPinnedHost);
  const auto move = [&](const std::vector<int32_t>& blocks, bool to_host) {
    device.backend().swap(
        device.queue(),
        {.kv = kv.pool(), .blocks = blocks, .host_blocks = on_host, .host = host->data(), .to_host = to_host});
    device.queue().synchronize();
  };
  move(table, true);
  move(back, false);

  const size_t kv_bytes = device.backend().kv_bytes_per_block(geometry);
  const std::vector<std::byte> pool = kv.bytes();
  device.download(scores.data(), kv.pool().scores, entries * sizeof(float));
  device.download(positions.data(), kv.pool().positions, entries * sizeof(int32_t));
  for (size_t layer = 0; layer < 3; ++layer) {
    for (size_t i = 0; i < table.size(); ++i) {
      const size_t from = layer * 12 + static_cast<size_t>(table[i]), to = layer * 12 + static_cast<size_t>(back[i]);
      EXPECT_EQ(std::memcmp(pool.data() + from * kv_bytes, pool.data() + to * kv_bytes, kv_bytes), 0);
      EXPECT_EQ(std::memcmp(&scores[from * 64], &scores[to * 64], 64 * sizeof(float)), 0);
      EXPECT_EQ(std::memcmp(&positions[from * 64], &positions[to * 64], 64 * sizeof(int32_t)), 0);
    }
  }
}

TEST_P(MoveTest, RingRowsOfOneQuerySlotMoveAlone) {
  Random random(2);
  const int layers = 2, slots = 3, window = 4, row = 128;
  const std::vector<float> values = device.stored(random.normals(layers * slots * window * row));
  ActMatrix ring = device.act(values, layers * slots * window, row);
  const size_t element = device.f32() ? sizeof(float) : 2;
  auto host =
      device.backend().allocate(static_cast<size_t>(layers * window * row) * element, "swap", MemoryKind::kPinnedHost);
  const auto move = [&](int slot, bool to_host) {
    device.backend().swap_ring(device.queue(), {.ring = {ring.matrix().data, slots, window},
                                                .num_layers = layers,
                                                .query_slot = slot,
                                                .row_elements = row,
                                                .host = host->data(),
                                                .to_host = to_host});
    device.queue().synchronize();
  };
  move(1, true);
  move(2, false);
  std::vector<float> expected = values;
  for (int layer = 0; layer < layers; ++layer) {
    const int64_t base = static_cast<int64_t>(layer) * slots * window * row, size = static_cast<int64_t>(window) * row;
    std::copy_n(values.begin() + base + size, size, expected.begin() + base + 2 * size);
  }
  EXPECT_EQ(ring.values(), expected);
}

TEST_P(MoveTest, GatherReadsBackWhatWasStored) {
  Random random(3);
  const KvGeometry geometry{1, 6, 16, 3, 64, DType::kBF16};
  PagedKv kv(device, geometry);
  const std::vector<int32_t> table{5, 0, 3};
  const std::vector<float> k = rounded_to_bf16(random.normals(40 * 3 * 64)),
                           v = rounded_to_bf16(random.normals(40 * 3 * 64));
  kv.write(0, table, 0, k, v);
  for (int head = 0; head < 3; ++head) {
    std::vector<int32_t> slots;
    std::vector<float> expected_k, expected_v, actual_k, actual_v;
    for (int t : {39, 0, 17, 16, 15}) {
      slots.push_back(table[static_cast<size_t>(t / 16)] * 16 + t % 16);
      expected_k.insert(expected_k.end(), k.begin() + (t * 3 + head) * 64, k.begin() + (t * 3 + head + 1) * 64);
      expected_v.insert(expected_v.end(), v.begin() + (t * 3 + head) * 64, v.begin() + (t * 3 + head + 1) * 64);
    }
    kv.read(0, head, slots, actual_k, actual_v);
    EXPECT_EQ(actual_k, expected_k);
    EXPECT_EQ(actual_v, expected_v);
  }
}

TEST_P(MoveTest, RowsAreUploadedAndWhatLiesBetweenStays) {
  constexpr size_t kRows = 5, kDeviceStride = 48, kHostStride = 32, kRowBytes = 20;
  const auto pinned = device.backend().allocate(kRows * kHostStride, "rows", MemoryKind::kPinnedHost);
  for (size_t i = 0; i < pinned->bytes(); ++i) pinned->data()[i] = static_cast<std::byte>(i);
  const auto to = device.array(std::vector<uint8_t>(kRows * kDeviceStride, 0xEE));
  device.backend().upload_rows(device.queue(), to.data(), kDeviceStride, pinned->data(), kHostStride, kRowBytes, kRows);
  device.queue().synchronize();
  const std::vector<uint8_t> got = to.values();
  for (size_t row = 0; row < kRows; ++row) {
    for (size_t i = 0; i < kDeviceStride; ++i) {
      EXPECT_EQ(got[row * kDeviceStride + i], i < kRowBytes ? row * kHostStride + i : 0xEEU) << row << ", " << i;
    }
  }
}

TEST_P(MoveTest, NoiseIsTheSameOnEveryDevice) {
  constexpr size_t kCount = 100'003;
  const auto noise = device.array(std::vector<uint16_t>(kCount + 1, 0xFFFF));
  device.backend().noise(device.queue(), noise.data(), DType::kBF16, kCount, 0.25F, 7);
  device.queue().synchronize();
  const std::vector<uint16_t> got = noise.values();
  double sum = 0, squares = 0;
  for (size_t i = 0; i < kCount; ++i) {
    const float expected = 0.25F * noise_value(7, i);
    ASSERT_EQ(got[i], Bf16(expected).bits) << i;
    sum += expected;
    squares += expected * expected;
  }
  EXPECT_EQ(got[kCount], 0xFFFF);
  // Uniform in [-1/4, 1/4): mean 0, variance 1/48.
  EXPECT_NEAR(sum / kCount, 0, 2e-3);
  EXPECT_NEAR(squares / kCount, 1.0 / 48, 2e-4);
}

INSTANTIATE_TEST_SUITE_P(Devices, MoveTest, testing::ValuesIn(device_names()), device_of);

}  // namespace
}  // namespace zipage::test
