#include "ops/compress_fixture.h"

namespace zipage::test {
namespace {

std::vector<float> run(const CompressFixture& f, const CompressionParams& p, const float* s, const float* r) {
  const auto backend = make_cpu_backend({.num_threads = 2});
  const auto queue = backend->make_queue(QueuePriority::kNormal);
  std::vector<float> out = f.per_slot();
  backend->combine(*queue, {.source = f.source(), .params = p, .scores = s, .redundancy = r, .out = out.data()});
  return out;
}

TEST(Combine, EqualsTheOracleOverRandomShapesAndProtections) {
  for (uint32_t seed = 1; seed <= 40; ++seed) {
    const CompressFixture f(random_shape(seed));
    std::mt19937 random(seed);
    CompressionParams p;
    p.window = f.shape().window;
    p.budget = 16 * (1 + static_cast<int>(random() % 30));
    p.sinks = static_cast<int>(random() % 6);
    p.recent = static_cast<int>(random() % 100);
    p.protect_prompt = random() % 2 == 0;
    p.lambda = static_cast<float>(random() % 100) / 100.0F;
    p.combine = random() % 2 == 0 ? ScoreCombine::kLinear : ScoreCombine::kLog;
    const bool with_scores = random() % 4 != 0, with_redundancy = random() % 3 != 0;
    std::vector<float> s = f.per_slot(), r = f.per_slot();
    for (float& x : s) x = static_cast<float>(random() % 1000) / 1000.0F;
    for (float& x : r) x = static_cast<float>(random() % 1000) / 1000.0F;
    const std::vector<float> got = run(f, p, with_scores ? s.data() : nullptr, with_redundancy ? r.data() : nullptr);
    for (int64_t task = 0; task < f.heads(); ++task) {
      const int num_slots = f.shape().num_slots;
      const oracle::Row s64 = f.row(s, task), r64 = f.row(r, task);
      const auto want = oracle::combine(f.sequence(), f.head(task), p, with_scores ? &s64 : nullptr,
                                        with_redundancy ? &r64 : nullptr);
      for (int t = 0; t < num_slots; ++t) {
        const float g = got[static_cast<size_t>(task * num_slots + t)];
        const double w = want[static_cast<size_t>(t)];
        ASSERT_TRUE(std::isinf(w) ? g == kInf : std::abs(g - w) < 1e-6 * (1 + std::abs(w)))
            << f.shape().describe() << " head " << task << " slot " << t << ": " << g << " for " << w;
      }
    }
  }
}

TEST(Combine, AtRandomIsUniformAndChangesWithSeedHeadAndPosition) {
  const CompressFixture f(
      {.num_layers = 1, .num_kv_heads = 2, .group = 1, .head_dim = 32, .num_slots = 1216, .window = 16});
  CompressionParams p;
  p.random = true;
  p.window = 16;
  p.random_seed = 7;
  const std::vector<float> got = run(f, p, nullptr, nullptr);
  p.random_seed = 8;
  const std::vector<float> other_seed = run(f, p, nullptr, nullptr);
  std::array<int, 10> counts{};
  int equal = 0;
  for (size_t t = 0; t < 1200; ++t) {
    ASSERT_GE(got[t], 0.0F);
    ASSERT_LT(got[t], 1.0F);
    ++counts[static_cast<size_t>(got[t] * 10)];
    equal += got[t] == other_seed[t] || got[t] == got[t + 1216] || (t > 0 && got[t] == got[t - 1]) ? 1 : 0;
  }
  EXPECT_EQ(equal, 0);
  for (int count : counts) EXPECT_NEAR(count, 120, 45);  // more than four standard deviations
}

}  // namespace
}  // namespace zipage::test
