#include "ops/compress_fixture.h"

namespace zipage::testing {
namespace {

TEST(ValueNorms, EqualTheOracleOnEveryInstructionSet) {
  for (cpu::Isa isa : all_isas()) {
    cpu::CpuBackend backend({.num_threads = 2}, isa);
    const auto queue = backend.make_queue(QueuePriority::kNormal);
    for (uint32_t seed = 1; seed <= 25; ++seed) {
      const CompressFixture f(random_shape(seed));
      std::vector<float> scores = f.per_slot();
      std::mt19937 random(seed);
      for (float& s : scores) s = static_cast<float>(random() % 1000) / 20000.0F;
      const std::vector<float> before = scores;
      backend.value_norms(*queue, {.source = f.source(), .scores = scores.data()});
      for (int64_t task = 0; task < f.heads(); ++task) {
        const oracle::Head& head = f.sequence().heads[static_cast<size_t>(task / f.shape().num_kv_heads)]
                                                     [static_cast<size_t>(task % f.shape().num_kv_heads)];
        const auto begin = before.begin() + task * f.shape().num_slots;
        oracle::Row expected(begin, begin + f.shape().num_slots);
        oracle::weigh_by_values(head, expected);
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
}  // namespace zipage::testing
