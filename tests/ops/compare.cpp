#include "ops/compare.h"

#include <fmt/format.h>

#include <cmath>

namespace zipage::test {
namespace {

bool same_kind(float actual, double expected) {
  if (std::isnan(expected)) return std::isnan(actual);
  if (std::isinf(expected)) return static_cast<double>(actual) == expected;
  return std::isfinite(actual);
}

std::string place(size_t index, int64_t cols) {
  return fmt::format("row {} column {}", static_cast<int64_t>(index) / cols, static_cast<int64_t>(index) % cols);
}

}  // namespace

testing::AssertionResult close(const std::vector<float>& actual, const std::vector<double>& expected, int64_t cols,
                               Tolerance tolerance) {
  if (actual.size() != expected.size()) {
    return testing::AssertionFailure() << fmt::format("{} elements where {} are right", actual.size(), expected.size());
  }
  size_t special = 0, first_special = 0, outside = 0, above = 0, worst = 0;
  double worst_excess = 0, dot = 0, actual_norm = 0, expected_norm = 0;
  for (size_t i = 0; i < actual.size(); ++i) {
    if (!same_kind(actual[i], expected[i])) {
      if (special++ == 0) first_special = i;
      continue;
    }
    if (!std::isfinite(expected[i])) continue;
    const double a = static_cast<double>(actual[i]);
    dot += a * expected[i];
    actual_norm += a * a;
    expected_norm += expected[i] * expected[i];
    const double excess = std::abs(a - expected[i]) - (tolerance.absolute + tolerance.relative * std::abs(expected[i]));
    if (excess <= 0) continue;
    ++outside;
    if (a > expected[i]) ++above;
    if (excess > worst_excess) {
      worst_excess = excess;
      worst = i;
    }
  }
  if (special > 0) {
    return testing::AssertionFailure() << fmt::format(
               "{} of {} elements are NaN or infinite where they must not be, or the reverse; the first at {}: {} for "
               "{}",
               special, actual.size(), place(first_special, cols), actual[first_special], expected[first_special]);
  }
  if (outside == 0) return testing::AssertionSuccess();
  const double cosine = dot / std::sqrt(std::max(actual_norm * expected_norm, 1e-300));
  return testing::AssertionFailure() << fmt::format(
             "{} of {} elements outside {:.3g} + {:.3g} |x| ({} too large); cosine {:.9f}, norm ratio {:.6f}; the "
             "worst at "
             "{}: {} for {}",
             outside, actual.size(), tolerance.absolute, tolerance.relative, above, cosine,
             std::sqrt(actual_norm / std::max(expected_norm, 1e-300)), place(worst, cols), actual[worst],
             expected[worst]);
}

}  // namespace zipage::test
