#include <gtest/gtest.h>

#include <algorithm>

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
    for (int rows : {1, 2, 3, 4, 6, 7, 12, 13, 25, 70}) {
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

TEST_P(LinearTest, EmbeddingReadsRowsOfThePackedTable) {
  Random random(3);
  for (int at_least : {16, 33, 384}) {
    const int vocab = 200, hidden = device.width(at_least);
    std::vector<float> w = random.normals(static_cast<int64_t>(vocab) * hidden);
    const auto table = device.linear(w, vocab, hidden);
    const std::vector<int32_t> ids{0, 199, 63, 64, 65, 127, 128, 7};
    const auto tokens = device.array(ids);
    ActMatrix out = device.act({}, static_cast<int64_t>(ids.size()), hidden, 3);
    device.backend().embedding(device.queue(), {.table = table.get(), .token_ids = tokens.data(), .out = out.matrix()});
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
  const auto weight = device.linear(w, out, in);
  ActMatrix input = device.act(x, rows, in);
  ActMatrix together = device.act({}, rows, out);
  device.backend().linear(device.queue(), {.x = input.matrix(), .weight = weight.get(), .out = together.matrix()});
  std::vector<float> one_by_one;
  for (int row = 0; row < rows; ++row) {
    ActMatrix single = device.act({x.begin() + row * in, x.begin() + (row + 1) * in}, 1, in);
    ActMatrix alone = device.act({}, 1, out);
    device.backend().linear(device.queue(), {.x = single.matrix(), .weight = weight.get(), .out = alone.matrix()});
    const std::vector<float> values = alone.values();
    one_by_one.insert(one_by_one.end(), values.begin(), values.end());
  }
  EXPECT_EQ(together.values(), one_by_one);
}

INSTANTIATE_TEST_SUITE_P(Devices, LinearTest, testing::ValuesIn(device_names()), device_of);

}  // namespace
}  // namespace zipage::test
