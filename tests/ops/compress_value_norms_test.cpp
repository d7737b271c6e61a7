#include "ops/compress_fixture.h"

namespace zipage::test {
namespace {

TEST(ValueNorms, EqualTheOracleOnEveryInstructionSet) {
  for (uint32_t seed = 1; seed <= 25; ++seed) {
    const CompressFixture f(random_shape(seed));
    const std::vector<float> before = f.random_scores();
    for (cpu::Isa isa : all_isas()) {
      cpu::CpuBackend backend({.num_threads = 2}, isa);
      const auto queue = backend.make_queue(QueuePriority::kNormal);
      std::vector<float> scores = before;
      backend.value_norms(*queue, {.source = f.source(), .scores = scores.data()});
      for (int64_t task = 0; task < f.heads(); ++task) {
        oracle::Row expected = f.row(before, task);
        oracle::weigh_by_values(f.head(task), expected);
        for (int t = 0; t < f.shape().num_slots; ++t) {
          const double want = expected[static_cast<size_t>(t)];
          ASSERT_NEAR(scores[static_cast<size_t>(task * f.shape().num_slots + t)], want, 1e-9 + 3e-6 * want)
              << f.shape().describe() << " head " << task << " slot " << t;
        }
      }
    }
  }
}

}  // namespace
}  // namespace zipage::test
