#include "ops/compress_fixture.h"

namespace zipage::test {
namespace {

std::vector<int32_t> run(cpu::Isa isa, const CompressFixture& f, const std::vector<float>& scores, int budget,
                         bool blocks) {
  cpu::CpuBackend backend({.num_threads = 2}, isa);
  const auto queue = backend.make_queue(QueuePriority::kNormal);
  std::vector<int32_t> kept(static_cast<size_t>(f.heads() * budget), -1);
  backend.select(*queue, {.source = f.source(),
                          .budget = budget,
                          .whole_blocks = blocks,
                          .final_scores = scores.data(),
                          .kept = kept.data()});
  return kept;
}

class Select : public ::testing::TestWithParam<cpu::Isa> {};
INSTANTIATE_TEST_SUITE_P(Isa, Select, ::testing::ValuesIn(all_isas()),
                         [](const auto& isa) { return std::string(cpu::name(isa.param)); });

// Few distinct values, so ties decide nearly everything; zeros of both signs are equal.
TEST_P(Select, EqualsASortWithTiesToTheNewer) {
  for (uint32_t seed = 1; seed <= 40; ++seed) {
    const CompressFixture f(random_shape(seed));
    std::mt19937 random(seed);
    const int num_slots = f.shape().num_slots;
    const int budget = 1 + static_cast<int>(random() % static_cast<uint32_t>(num_slots));
    const bool blocks = seed % 3 == 0;
    std::vector<float> scores = f.per_slot();
    const uint32_t values = seed % 2 == 0 ? 5 : 100000;
    for (float& s : scores) {
      const uint32_t r = random() % 40;
      s = static_cast<float>(random() % values) / 8.0F - 0.25F;
      if (s == 0.0F && r % 2 == 0) s = -0.0F;
      if (r == 0) s = kInf;
      if (r == 1) s = -1e30F;
    }
    const std::vector<int32_t> kept = run(GetParam(), f, scores, budget, blocks);
    for (int64_t task = 0; task < f.heads(); ++task) {
      oracle::Row f64(scores.begin() + task * num_slots, scores.begin() + (task + 1) * num_slots);
      if (blocks) {
        f64 = oracle::block_means(f64, f.shape().block_size);
        for (double& x : f64) x = static_cast<float>(x);  // means that fp32 cannot tell apart are equal
      }
      const auto begin = kept.begin() + task * budget;
      if (blocks && values > 5) continue;  // covered by whole blocks below: sums round differently
      ASSERT_EQ(std::vector<int>(begin, begin + budget), oracle::select(f64, budget))
          << f.shape().describe() << " head " << task << " budget " << budget;
    }
  }
}

TEST_P(Select, PutsNaNLastAndStillFillsTheBudget) {
  const CompressFixture f({.num_layers = 1, .num_kv_heads = 1, .group = 1, .head_dim = 32, .num_slots = 100});
  std::vector<float> scores(100, NAN);
  for (size_t t = 10; t < 20; ++t) scores[t] = -5;
  scores[3] = -kInf;
  const std::vector<int32_t> kept = run(GetParam(), f, scores, 16, false);
  std::vector<int32_t> expected = {3};
  for (int t = 10; t < 20; ++t) expected.push_back(t);
  for (int t = 95; t < 100; ++t) expected.push_back(t);
  EXPECT_EQ(kept, expected);
}

TEST_P(Select, WholeBlocksStayWholeAndProtectedOnesFirst) {
  const CompressFixture f(
      {.num_layers = 1, .num_kv_heads = 1, .group = 1, .head_dim = 32, .block_size = 16, .num_slots = 96});
  std::vector<float> scores(96);
  const std::array<float, 6> means = {1, 4, 5, 2, 3, 0};
  for (size_t t = 0; t < 96; ++t) scores[t] = means[t / 16] + (t % 2 == 0 ? 0.25F : -0.25F);
  scores[95] = kInf;  // protects the worst block
  const std::vector<int32_t> kept = run(GetParam(), f, scores, 48, true);
  std::vector<int32_t> expected;
  for (int block : {1, 2, 5}) {
    for (int i = 0; i < 16; ++i) expected.push_back(block * 16 + i);
  }
  EXPECT_EQ(kept, expected);
}

// More protected blocks than the budget holds: the protected slots stay all the same (C4).
TEST_P(Select, C4_ProtectedSlotsStayWhenTheirBlocksDoNotFit) {
  const CompressFixture f(
      {.num_layers = 1, .num_kv_heads = 1, .group = 1, .head_dim = 32, .block_size = 16, .num_slots = 90});
  std::vector<float> scores(90, 0.5F);
  const std::vector<int32_t> must = {0, 20, 40, 60, 80, 89};
  for (int32_t t : must) scores[static_cast<size_t>(t)] = kInf;
  for (bool blocks : {false, true}) {
    const std::vector<int32_t> kept = run(GetParam(), f, scores, 32, blocks);
    for (int32_t t : must) EXPECT_TRUE(std::binary_search(kept.begin(), kept.end(), t)) << t;
  }
}

}  // namespace
}  // namespace zipage::test
