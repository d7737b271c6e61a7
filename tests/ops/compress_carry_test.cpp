#include "ops/compress_fixture.h"

namespace zipage::testing {
namespace {

class Carry : public ::testing::TestWithParam<ScoreCarry> {};
INSTANTIATE_TEST_SUITE_P(Kind, Carry, ::testing::Values(ScoreCarry::kOff, ScoreCarry::kMax, ScoreCarry::kSum));

TEST_P(Carry, EqualsTheOracleAndLeavesNewSlotsAlone) {
  const auto backend = make_cpu_backend({.num_threads = 2});
  const auto queue = backend->make_queue(QueuePriority::kNormal);
  for (uint32_t seed = 1; seed <= 25; ++seed) {
    const CompressFixture f(random_shape(seed));
    std::vector<float> scores = f.per_slot();
    std::mt19937 random(seed);
    for (float& s : scores) s = static_cast<float>(random() % 1000) / 20000.0F;
    const std::vector<float> before = scores;
    backend->carry(*queue, {.source = f.source(), .carry = GetParam(), .decay = 0.7F, .scores = scores.data()});
    for (int64_t task = 0; task < f.heads(); ++task) {
      const oracle::Head& head = f.sequence().heads[static_cast<size_t>(task / f.shape().num_kv_heads)]
                                                   [static_cast<size_t>(task % f.shape().num_kv_heads)];
      const auto begin = before.begin() + task * f.shape().num_slots;
      oracle::Row expected(begin, begin + f.shape().num_slots);
      oracle::carry(f.sequence(), head, GetParam(), 0.7, expected);
      for (int t = 0; t < f.shape().num_slots; ++t) {
        ASSERT_NEAR(scores[static_cast<size_t>(task * f.shape().num_slots + t)], expected[static_cast<size_t>(t)], 1e-7)
            << f.shape().describe() << " head " << task << " slot " << t;
      }
    }
  }
}

}  // namespace
}  // namespace zipage::testing
