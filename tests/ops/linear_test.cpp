#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "ops/compare.h"
#include "ops/device.h"
#include "ops/oracle.h"
#include "ops/random.h"
#include "tensor/bf16.h"

namespace zipage::test {
namespace {

class LinearTest : public OpTest {};

TEST_P(LinearTest, AnyNumberOfRowsAndOddShapes) {
  Random random(1);
  const std::vector<std::pair<int, int>> shapes{{384, 768}, {512, 384}, {33, 100},  {1, 1},
                                                {576, 64},  {50, 130},  {1024, 320}};
  for (auto [at_least, out] : shapes) {
    const int in = device.width(at_least);
    for (int rows : {1, 2, 3, 4, 7, 13, 30}) {
      const std::vector<float> x = device.stored(random.normals(rows * in));
      std::vector<float> w = random.normals(static_cast<int64_t>(out) * in, 0.1F);
      const std::vector<float> bias = rows % 2 == 0 ? random.normals(out) : std::vector<float>{};
      const auto weight = device.linear(w, out, in);
      EXPECT_EQ(weight->in_features(), in);
      EXPECT_EQ(weight->out_features(), out);
      ActMatrix input = device.act(x, rows, in, 8);
      ActMatrix output = device.act({}, rows, out, 8);
      const auto biases = device.array(bias);
      device.backend().linear(device.queue(), {.x = input.matrix(),
                                               .weight = weight.get(),
                                               .bias = bias.empty() ? nullptr : biases.data(),
                                               .out = output.matrix()});
      const auto expected = oracle::linear(oracle::widen(x), oracle::widen(w), oracle::widen(bias), rows, in, out);
      const auto mass = oracle::linear_mass(oracle::widen(x), oracle::widen(w), rows, in, out);
      // fp32 sums stay within a few units of the absolute mass that was added up.
      const double absolute = 1e-6 + 1e-6 * *std::max_element(mass.begin(), mass.end());
      EXPECT_TRUE(close(output.values(), expected, out, {absolute, device.f32() ? 1e-6 : 1.0 / 128}))
          << rows << " rows, " << in << " -> " << out;
      EXPECT_TRUE(output.gap_untouched());
    }
  }
}

TEST_P(LinearTest, PartsOfAnyTypeAreStackedInOrder) {
  Random random(2);
  const int in = 64;
  const std::vector<float> wide = random.normals(10 * in);
  std::vector<Bf16> narrow(static_cast<size_t>(70 * in));
  for (Bf16& value : narrow) value = Bf16(random.normal());
  const HostTensor parts[] = {
      {.name = "a", .dtype = DType::kF32, .shape = {10, in}, .data = std::as_bytes(std::span(wide))},
      {.name = "b", .dtype = DType::kBF16, .shape = {70, in}, .data = std::as_bytes(std::span(narrow))},
  };
  const auto weight = device.backend().make_linear(parts);
  ASSERT_EQ(weight->out_features(), 80);
  std::vector<float> w;
  for (float value : wide) w.push_back(static_cast<float>(Bf16(value)));
  for (Bf16 value : narrow) w.push_back(static_cast<float>(value));
  const std::vector<float> x = device.stored(random.normals(in));
  ActMatrix input = device.act(x, 1, in);
  ActMatrix output = device.act({}, 1, 80);
  device.backend().linear(device.queue(), {.x = input.matrix(), .weight = weight.get(), .out = output.matrix()});
  EXPECT_TRUE(close(output.values(), oracle::linear(oracle::widen(x), oracle::widen(w), {}, 1, in, 80), 80,
                    {1e-4, device.f32() ? 1e-6 : 1.0 / 128}));
}

// Blocks of a quantised format with random contents and scales that are sane numbers.
std::vector<uint8_t> random_blocks(DType dtype, int64_t elements, Random& random) {
  const DTypeTraits& type = traits(dtype);
  std::vector<uint8_t> bytes(static_cast<size_t>(elements / type.block_elements * type.block_bytes));
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random.between(0, 255));
  const auto half = [&](size_t at, int exponent) {
    const auto bits =
        static_cast<uint16_t>(random.between(0, 1) << 15 | (exponent + 15) << 10 | random.between(0, 1023));
    std::memcpy(&bytes[at], &bits, sizeof(bits));
  };
  for (size_t block = 0; block < bytes.size(); block += static_cast<size_t>(type.block_bytes)) {
    if (dtype == DType::kQ6_K) {
      half(block + 208, -10);
      continue;
    }
    half(block, -6);
    const bool has_minimum =
        dtype == DType::kQ4_1 || dtype == DType::kQ5_1 || dtype == DType::kQ4_K || dtype == DType::kQ5_K;
    if (has_minimum) half(block + 2, -5);
  }
  return bytes;
}

TEST_P(LinearTest, QuantisedWeightsOfEveryFormatAndMixture) {
  Random random(5);
  const std::vector<std::vector<DType>> mixtures{
      {DType::kQ4_0}, {DType::kQ4_1}, {DType::kQ8_0},
      {DType::kQ5_0}, {DType::kQ5_1}, {DType::kQ4_K},
      {DType::kQ5_K}, {DType::kQ6_K}, {DType::kQ4_K, DType::kQ6_K, DType::kBF16}};
  const int in = 512, part_rows = 100;
  for (const auto& mixture : mixtures) {
    std::vector<std::vector<uint8_t>> storage;
    std::vector<HostTensor> parts;
    std::vector<float> w;
    for (DType dtype : mixture) {
      if (dtype == DType::kBF16) {
        storage.emplace_back(static_cast<size_t>(2 * part_rows * in));
        for (size_t i = 0; i < storage.back().size(); i += 2) {
          const Bf16 value(random.normal());
          std::memcpy(&storage.back()[i], &value, sizeof(value));
        }
      } else {
        storage.push_back(random_blocks(dtype, part_rows * in, random));
      }
      parts.push_back(
          {.name = "part", .dtype = dtype, .shape = {part_rows, in}, .data = std::as_bytes(std::span(storage.back()))});
      std::vector<float> expanded(static_cast<size_t>(part_rows * in));
      dequantize(parts.back(), 0, part_rows * in, expanded.data());
      w.insert(w.end(), expanded.begin(), expanded.end());
    }
    const auto weight = device.backend().make_linear(parts);
    const auto out = static_cast<int>(mixture.size()) * part_rows;
    float largest = 0;
    for (float value : w) largest = std::max(largest, std::abs(value));
    // Formats of four bits and Q8_0 are kept as they are; others are rounded to 8 bits of their group's largest, and on
    // devices that compute in bf16 to that. Mixtures hold bf16.
    const bool kept =
        mixture.size() == 1 && (mixture[0] == DType::kQ4_0 || mixture[0] == DType::kQ4_1 || mixture[0] == DType::kQ8_0);
    const double weight_error = device.f32() && kept ? 1e-6 : 1.0 / 250;
    for (int rows : {1, 2, 5, 17}) {
      const std::vector<float> x = device.stored(random.normals(rows * in));
      ActMatrix input = device.act(x, rows, in, 3);
      ActMatrix output = device.act({}, rows, out, 5);
      device.backend().linear(device.queue(), {.x = input.matrix(), .weight = weight.get(), .out = output.matrix()});
      const auto expected = oracle::linear(oracle::widen(x), oracle::widen(w), {}, rows, in, out);
      // Errors of single weights are independent: their sum grows with the root of their number.
      const double absolute = kept && device.f32() ? 3e-6 * in * static_cast<double>(largest)
                                                   : 5 * std::sqrt(in) * weight_error * static_cast<double>(largest);
      EXPECT_TRUE(close(output.values(), expected, out, {absolute, device.f32() ? 1e-6 : 1.0 / 128}))
          << traits(mixture[0]).name << ", " << rows << " rows";
      EXPECT_TRUE(output.gap_untouched());
    }
    // The same table as an embedding.
    const std::vector<int32_t> ids{0, 63, 64, static_cast<int32_t>(out - 1)};
    const auto tokens = device.array(ids);
    ActMatrix rows_read = device.act({}, static_cast<int64_t>(ids.size()), in);
    device.backend().embedding(device.queue(),
                               {.table = weight.get(), .token_ids = tokens.data(), .out = rows_read.matrix()});
    std::vector<float> expected;
    for (int32_t id : ids) expected.insert(expected.end(), w.begin() + id * in, w.begin() + (id + 1) * in);
    EXPECT_TRUE(close(rows_read.values(), oracle::widen(expected), in,
                      {weight_error * static_cast<double>(largest), 1.0 / 128}))
        << traits(mixture[0]).name;
  }
}

TEST_P(LinearTest, EmbeddingReadsRowsOfThePackedTable) {
  Random random(3);
  for (int at_least : {16, 33, 384}) {
    const int vocab = 200, hidden = device.width(at_least);
    std::vector<float> w = random.normals(static_cast<int64_t>(vocab) * hidden);
    const auto table = device.linear(w, vocab, hidden);
    // Ids below 0 refer to what was sampled, where a -1 stands for nothing.
    const auto tokens = device.array(std::vector<int32_t>{0, 199, 63, -2, 65, -1, 128, -3});
    const auto sampled = device.array(std::vector<int32_t>{127, 64, -1});
    const std::vector<int32_t> ids{0, 199, 63, 64, 65, 127, 128, 0};
    ActMatrix out = device.act({}, static_cast<int64_t>(ids.size()), hidden, 3);
    device.backend().embedding(
        device.queue(),
        {.table = table.get(), .token_ids = tokens.data(), .sampled = sampled.data(), .out = out.matrix()});
    std::vector<float> expected;
    for (int32_t id : ids) expected.insert(expected.end(), w.begin() + id * hidden, w.begin() + (id + 1) * hidden);
    EXPECT_EQ(out.values(), expected);
    EXPECT_TRUE(out.gap_untouched());
  }
}

TEST_P(LinearTest, ARowDoesNotDependOnTheOthersOfItsBatch) {
  if (!device.f32()) GTEST_SKIP() << "promised on the CPU only";
  Random random(4);
  const int in = 384, out = 200, rows = 29;
  const std::vector<float> x = random.normals(rows * in);
  std::vector<float> w = random.normals(static_cast<int64_t>(out) * in);
  const auto plain = device.linear(w, out, in);
  std::vector<HostTensor> parts;
  const std::vector<uint8_t> nibbles = random_blocks(DType::kQ4_1, 128 * in, random),
                             bytes = random_blocks(DType::kQ8_0, 72 * in, random);
  parts.push_back(
      {.name = "nibbles", .dtype = DType::kQ4_1, .shape = {128, in}, .data = std::as_bytes(std::span(nibbles))});
  parts.push_back({.name = "bytes", .dtype = DType::kQ8_0, .shape = {72, in}, .data = std::as_bytes(std::span(bytes))});
  const auto quantised = device.backend().make_linear(parts);
  for (const Linear* weight : {plain.get(), quantised.get()}) {
    ActMatrix input = device.act(x, rows, in);
    ActMatrix together = device.act({}, rows, out);
    device.backend().linear(device.queue(), {.x = input.matrix(), .weight = weight, .out = together.matrix()});
    std::vector<float> one_by_one;
    for (int row = 0; row < rows; ++row) {
      ActMatrix single = device.act({x.begin() + row * in, x.begin() + (row + 1) * in}, 1, in);
      ActMatrix alone = device.act({}, 1, out);
      device.backend().linear(device.queue(), {.x = single.matrix(), .weight = weight, .out = alone.matrix()});
      const std::vector<float> values = alone.values();
      one_by_one.insert(one_by_one.end(), values.begin(), values.end());
    }
    EXPECT_EQ(together.values(), one_by_one);
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, LinearTest, testing::ValuesIn(device_names()), device_of);

}  // namespace
}  // namespace zipage::test
