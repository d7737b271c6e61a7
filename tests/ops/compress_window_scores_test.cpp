#include "ops/compress_fixture.h"

namespace zipage::test {
namespace {

std::vector<float> run(Backend& backend, const CompressFixture& f) {
  const auto queue = backend.make_queue(QueuePriority::kNormal);
  std::vector<float> scores = f.per_slot();
  backend.window_scores(*queue, {.source = f.source(),
                                 .ring = f.ring(),
                                 .query_slot = CompressFixture::kQuerySlot,
                                 .num_heads = f.sequence().num_heads,
                                 .scale = static_cast<float>(f.sequence().scale),
                                 .scores = scores.data()});
  return scores;
}

class WindowScores : public ::testing::TestWithParam<cpu::Isa> {};
INSTANTIATE_TEST_SUITE_P(Isa, WindowScores, ::testing::ValuesIn(all_isas()),
                         [](const auto& isa) { return std::string(cpu::name(isa.param)); });

TEST_P(WindowScores, EqualTheOracleOverRandomShapes) {
  cpu::CpuBackend backend({.num_threads = 2}, GetParam());
  for (uint32_t seed = 1; seed <= 12; ++seed) {
    const CompressFixture f(random_shape(seed));
    const std::vector<float> scores = run(backend, f);
    for (int64_t task = 0; task < f.heads(); ++task) {
      const auto expected = oracle::window_scores(f.sequence(), static_cast<int>(task / f.shape().num_kv_heads),
                                                  static_cast<int>(task % f.shape().num_kv_heads));
      for (int t = 0; t < f.shape().num_slots; ++t) {
        const float got = scores[static_cast<size_t>(task * f.shape().num_slots + t)];
        const double want = expected[static_cast<size_t>(t)];
        ASSERT_NEAR(got, want, 1e-7 + 3e-5 * want) << f.shape().describe() << " head " << task << " slot " << t;
      }
    }
  }
}

TEST_P(WindowScores, SumToAtLeastOneAndAtMostTheGroup) {
  cpu::CpuBackend backend({.num_threads = 1}, GetParam());
  const CompressFixture f({.group = 4, .num_slots = 333});
  const std::vector<float> scores = run(backend, f);
  for (int64_t task = 0; task < f.heads(); ++task) {
    const auto begin = scores.begin() + task * 333;
    const float sum = std::accumulate(begin, begin + 333, 0.0F);
    EXPECT_GE(sum, 1.0F - 1e-4F);
    EXPECT_LE(sum, 4.0F);
  }
}

TEST_P(WindowScores, DoNotDependOnTheNumberOfThreads) {
  cpu::CpuBackend one({.num_threads = 1}, GetParam());
  cpu::CpuBackend three({.num_threads = 3}, GetParam());
  const CompressFixture f({.num_layers = 3, .num_slots = 517, .num_scored = 200, .evicted = 300});
  EXPECT_EQ(run(one, f), run(three, f));
}

}  // namespace
}  // namespace zipage::test
