#include "ops/compress_fixture.h"

namespace zipage::test {
namespace {

class Carry : public ::testing::TestWithParam<ScoreCarry> {};
INSTANTIATE_TEST_SUITE_P(Kind, Carry, ::testing::Values(ScoreCarry::kOff, ScoreCarry::kMax, ScoreCarry::kSum));

TEST_P(Carry, EqualsTheOracleAndLeavesNewSlotsAlone) {
  const auto backend = make_cpu_backend({.num_threads = 2});
  const auto queue = backend->make_queue(QueuePriority::kNormal);
  for (uint32_t seed = 1; seed <= 25; ++seed) {
    const CompressFixture f(random_shape(seed));
    const std::vector<float> before = f.random_scores();
    std::vector<float> scores = before;
    backend->carry(*queue, {.source = f.source(), .carry = GetParam(), .decay = 0.7F, .scores = scores.data()});
    for (int64_t task = 0; task < f.heads(); ++task) {
      oracle::Row expected = f.row(before, task);
      oracle::carry(f.sequence(), f.head(task), GetParam(), 0.7, expected);
      for (int t = 0; t < f.shape().num_slots; ++t) {
        ASSERT_NEAR(scores[static_cast<size_t>(task * f.shape().num_slots + t)], expected[static_cast<size_t>(t)], 1e-7)
            << f.shape().describe() << " head " << task << " slot " << t;
      }
    }
  }
}

}  // namespace
}  // namespace zipage::test
