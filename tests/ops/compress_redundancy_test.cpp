#include "ops/compress_fixture.h"

namespace zipage::test {
namespace {

std::vector<float> run(Backend& backend, const CompressFixture& f, const CompressionParams& p) {
  const auto queue = backend.make_queue(QueuePriority::kNormal);
  std::vector<float> out = f.per_slot();
  backend.redundancy(*queue, {.source = f.source(),
                              .scope = p.scope,
                              .keys = p.keys,
                              .threshold = p.threshold,
                              .temperature = p.temperature,
                              .cos_sin = f.cos_sin(),
                              .rotary_dim = f.shape().rotary_dim,
                              .redundancy = out.data()});
  return out;
}

class RedundancyStage : public ::testing::TestWithParam<std::tuple<RedundancyScope, RedundancyKeys>> {
 protected:
  static CompressionParams params() {
    CompressionParams p;
    p.scope = std::get<0>(GetParam());
    p.keys = std::get<1>(GetParam());
    return p;
  }
};
INSTANTIATE_TEST_SUITE_P(ScopeKeys, RedundancyStage,
                         ::testing::Combine(::testing::Values(RedundancyScope::kExact, RedundancyScope::kLightning,
                                                              RedundancyScope::kMean),
                                            ::testing::Values(RedundancyKeys::kRotated, RedundancyKeys::kContent)));

void expect_equal(const std::vector<float>& got, int64_t first, const oracle::Redundancy& want,
                  const std::string& where) {
  for (size_t t = 0; t < want.value.size(); ++t) {
    const double w = want.value[t];
    ASSERT_NEAR(got[static_cast<size_t>(first) + t], w, w * (2e-5 + std::expm1(want.log_slack[t])))
        << where << " slot " << t;
  }
}

TEST_P(RedundancyStage, EqualsTheOracleOverRandomShapes) {
  CompressionParams p = params();
  for (uint32_t seed = 1; seed <= 10; ++seed) {
    Shape shape = random_shape(seed);
    shape.num_layers = 1;
    shape.num_kv_heads = std::min(shape.num_kv_heads, 2);
    p.threshold = seed % 3 == 0 ? 0.8F : 0.5F;
    p.temperature = seed % 2 == 0 ? 0.4F : 0.05F;
    const CompressFixture f(shape);
    std::vector<oracle::Redundancy> want;
    for (const oracle::Head& head : f.sequence().heads[0])
      want.push_back(oracle::redundancy(f.sequence(), head, p, 2e-6));
    for (cpu::Isa isa : all_isas()) {
      cpu::CpuBackend backend({.num_threads = 2}, isa);
      const std::vector<float> got = run(backend, f, p);
      for (size_t head = 0; head < want.size(); ++head) {
        ASSERT_NO_FATAL_FAILURE(expect_equal(got, static_cast<int64_t>(head) * shape.num_slots, want[head],
                                             fmt::format("{} {} head {}", cpu::name(isa), shape.describe(), head)));
      }
    }
  }
}

TEST_P(RedundancyStage, SumsToOneAndDoesNotDependOnTheNumberOfThreads) {
  cpu::CpuBackend one({.num_threads = 1});
  cpu::CpuBackend three({.num_threads = 3});
  const CompressFixture f({.num_layers = 3, .num_slots = 517, .num_scored = 200, .evicted = 300});
  const std::vector<float> got = run(one, f, params());
  EXPECT_EQ(got, run(three, f, params()));
  for (int64_t task = 0; task < f.heads(); ++task) {
    EXPECT_NEAR(std::accumulate(got.begin() + task * 517, got.begin() + (task + 1) * 517, 0.0), 1.0, 1e-5);
  }
}

// What tells content keys from rotated ones: copies of one key at different positions are equal only without rotation.
TEST(Redundancy, OfContentKeysSeesThroughTheRotation) {
  cpu::CpuBackend backend({.num_threads = 1});
  Shape shape{.num_layers = 1, .num_kv_heads = 1, .group = 1, .num_slots = 128, .prompt_len = 0};
  CompressFixture f(shape);
  oracle::Sequence& s = f.mutable_sequence();
  oracle::Head& head = s.heads[0][0];
  for (int t = 0; t < 128; ++t) {
    oracle::Row& k = head.k[static_cast<size_t>(t)];
    const int position = head.position[static_cast<size_t>(t)];
    for (int j = 0; j < 32; ++j) {
      // Every fourth key is the same content; the others point anywhere.
      const double phase = t % 4 == 0 ? j : 7.3 * t * (j + 1);
      const double angle = position / std::pow(s.theta, 2.0 * j / 64);
      k[static_cast<size_t>(j)] = std::cos(phase + angle);
      k[static_cast<size_t>(j + 32)] = std::sin(phase + angle);
    }
    f.write_slot(0, 0, t, f.table()[static_cast<size_t>(t / 64)], t % 64);
  }
  CompressionParams p;
  p.scope = RedundancyScope::kMean;
  p.temperature = 0.05F;
  const auto contrast = [&](RedundancyKeys keys) {
    p.keys = keys;
    const std::vector<float> r = run(backend, f, p);
    double copies = 0, others = 0;
    for (size_t t = 0; t < r.size(); ++t) (t % 4 == 0 ? copies : others) += r[t] / (t % 4 == 0 ? 32 : 96);
    return copies / others;
  };
  EXPECT_GT(contrast(RedundancyKeys::kContent), 3 * contrast(RedundancyKeys::kRotated));
}

// One column whose only neighbour above the threshold is older than itself: last(n) is not limited to newer slots.
TEST(Redundancy, LastMayBeOlderThanItsColumn) {
  cpu::CpuBackend backend({.num_threads = 1});
  CompressFixture f({.num_layers = 1, .num_kv_heads = 1, .group = 1, .head_dim = 32, .num_slots = 32, .prompt_len = 0});
  oracle::Head& head = f.mutable_sequence().heads[0][0];
  for (int t = 0; t < 32; ++t) {
    oracle::Row& k = head.k[static_cast<size_t>(t)];
    std::fill(k.begin(), k.end(), 0.0);
    k[static_cast<size_t>(t == 31 ? 3 : t)] = 1;  // all orthogonal, but 31 repeats 3
    f.write_slot(0, 0, t, f.table()[0], t);
  }
  CompressionParams p;
  p.keys = RedundancyKeys::kRotated;
  p.scope = RedundancyScope::kExact;
  // Both 3 and 31 are last() of the other, so both lose their only cosine: R is 0 for all.
  for (float r : run(backend, f, p)) EXPECT_NEAR(r, 1.0 / 32, 1e-6);
}

}  // namespace
}  // namespace zipage::test
