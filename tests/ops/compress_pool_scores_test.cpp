#include "ops/compress_fixture.h"

namespace zipage::test {
namespace {

TEST(PoolScores, EqualTheOracleForEveryWidth) {
  const auto backend = make_cpu_backend({.num_threads = 2});
  const auto queue = backend->make_queue(QueuePriority::kNormal);
  for (uint32_t seed = 1; seed <= 25; ++seed) {
    const CompressFixture f(random_shape(seed));
    std::vector<float> scores = f.per_slot();
    std::mt19937 random(seed);
    for (float& s : scores) s = static_cast<float>(random() % 1000);
    for (int width : {1, 3, 5, 9, 4095}) {
      std::vector<float> out = f.per_slot();
      backend->pool_scores(*queue, {.source = f.source(), .width = width, .scores = scores.data(), .out = out.data()});
      for (int64_t task = 0; task < f.heads(); ++task) {
        const auto begin = scores.begin() + task * f.shape().num_slots;
        const auto expected = oracle::pool(f.sequence(), oracle::Row(begin, begin + f.shape().num_slots), width);
        for (int t = 0; t < f.shape().num_slots; ++t) {
          ASSERT_EQ(out[static_cast<size_t>(task * f.shape().num_slots + t)], expected[static_cast<size_t>(t)])
              << f.shape().describe() << " width " << width << " slot " << t;
        }
      }
    }
  }
}

}  // namespace
}  // namespace zipage::test
