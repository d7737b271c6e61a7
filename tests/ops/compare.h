// Comparison of an op's result with the oracle's, which explains a mismatch.
#pragma once

#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

namespace zipage::test {

constexpr float kInf = std::numeric_limits<float>::infinity();

// |actual - expected| <= absolute + relative * |expected|.
struct Tolerance {
  double absolute = 0;
  double relative = 0;
};

// `cols` splits the index that a message names into row and column. NaN and infinities must be at the same places.
testing::AssertionResult close(const std::vector<float>& actual, const std::vector<double>& expected, int64_t cols,
                               Tolerance tolerance);

}  // namespace zipage::test
