#include <gtest/gtest.h>

#include <cmath>

#include "ops/compare.h"
#include "ops/device.h"
#include "ops/oracle.h"
#include "ops/random.h"

namespace zipage::test {
namespace {

class ElementwiseTest : public OpTest {
 protected:
  // Rounding of the stored result, and of fp32 arithmetic before it.
  Tolerance tolerance() const { return device.f32() ? Tolerance{1e-6, 4e-6} : Tolerance{1e-3, 1.0 / 128}; }
};

TEST_P(ElementwiseTest, RmsNormOfAnyWidthAndStride) {
  Random random(1);
  for (int at_least : {1, 16, 33, 384, 576, 1027, 4096, 12288}) {
    const int cols = device.width(at_least), rows = random.between(1, 40);
    const std::vector<float> x = device.stored(random.normals(rows * cols, 3.0F));
    const std::vector<float> weight = random.normals(cols);
    ActMatrix in = device.act(x, rows, cols, 5);
    ActMatrix out = device.act({}, rows, cols, 3);
    const auto weights = device.array(weight);
    device.backend().rms_norm(device.queue(),
                              {.x = in.matrix(), .weight = weights.data(), .eps = 1e-5F, .out = out.matrix()});
    EXPECT_TRUE(
        close(out.values(), oracle::rms_norm(oracle::widen(x), oracle::widen(weight), 1e-5, cols), cols, tolerance()))
        << rows << " x " << cols;
    EXPECT_TRUE(out.gap_untouched());
  }
}

TEST_P(ElementwiseTest, RmsNormAddsToTheResidualAndKeepsTheSum) {
  Random random(2);
  const int rows = 7, cols = 96;
  const std::vector<float> x = device.stored(random.normals(rows * cols));
  const std::vector<float> residual = device.stored(random.normals(rows * cols, 10.0F));
  const std::vector<float> weight = random.normals(cols);
  std::vector<float> sum(x.size());
  for (size_t i = 0; i < x.size(); ++i) sum[i] = x[i] + residual[i];
  ActMatrix in = device.act(x, rows, cols, 1);
  ActMatrix kept = device.act(residual, rows, cols, 2);
  const auto weights = device.array(weight);
  device.backend().rms_norm(
      device.queue(),
      {.x = in.matrix(), .residual = kept.matrix(), .weight = weights.data(), .eps = 1e-6F, .out = in.matrix()});
  EXPECT_TRUE(close(kept.values(), oracle::widen(sum), cols, tolerance()));
  EXPECT_TRUE(
      close(in.values(), oracle::rms_norm(oracle::widen(sum), oracle::widen(weight), 1e-6, cols), cols, tolerance()));
  EXPECT_TRUE(kept.gap_untouched());
}

TEST_P(ElementwiseTest, SiluMulOverTheWholeRangeOfFloats) {
  Random random(3);
  for (int at_least : {1, 16, 45, 1152}) {
    const int cols = device.width(at_least), rows = random.between(1, 20);
    std::vector<float> gate_up = random.normals(rows * 2 * cols, 4.0F);
    for (size_t i = 0; i < gate_up.size(); i += 7) gate_up[i] *= 40.0F;
    gate_up = device.stored(gate_up);
    ActMatrix in = device.act(gate_up, rows, 2 * cols, 4);
    ActMatrix out = device.act({}, rows, cols, 2);
    device.backend().silu_mul(device.queue(), {.gate_up = in.matrix(), .out = out.matrix()});
    EXPECT_TRUE(close(out.values(), oracle::silu_mul(oracle::widen(gate_up), rows, cols), cols, tolerance())) << cols;
    EXPECT_TRUE(out.gap_untouched());
  }
}

TEST_P(ElementwiseTest, GatherRowsInAnyOrderWithRepeats) {
  Random random(4);
  const int rows = 9, cols = device.width(37);
  const std::vector<float> x = device.stored(random.normals(rows * cols));
  const std::vector<int32_t> wanted{8, 0, 0, 3, 5, 8};
  ActMatrix in = device.act(x, rows, cols, 6);
  ActMatrix out = device.act({}, static_cast<int64_t>(wanted.size()), cols, 1);
  const auto ids = device.array(wanted);
  device.backend().gather_rows(device.queue(), {.x = in.matrix(), .rows = ids.data(), .out = out.matrix()});
  std::vector<float> expected;
  for (int32_t row : wanted) expected.insert(expected.end(), x.begin() + row * cols, x.begin() + (row + 1) * cols);
  EXPECT_EQ(out.values(), expected);
  EXPECT_TRUE(out.gap_untouched());
}

INSTANTIATE_TEST_SUITE_P(Devices, ElementwiseTest, testing::ValuesIn(device_names()), device_of);

}  // namespace
}  // namespace zipage::test
