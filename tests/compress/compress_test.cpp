#include "compress/compress.h"

#include "ops/compress_fixture.h"

namespace zipage::test {
namespace {

using Grid = std::vector<std::vector<std::vector<int>>>;  // [layer][kv head][slots]

std::vector<BlockId> to_ids(const std::vector<int32_t>& blocks) {
  return std::vector<BlockId>(blocks.begin(), blocks.end());
}
std::vector<int32_t> to_ints(const std::vector<BlockId>& blocks) {
  std::vector<int32_t> out;
  for (BlockId id : blocks) out.push_back(id.value());
  return out;
}

// One sequence, compressed by the code and by the oracle.
class Compression {
 public:
  Compression(const Shape& shape, const CompressionParams& params, int max_slots = 0)
      : backend_(make_cpu_backend({.num_threads = 2})),
        queue_(backend_->make_queue(QueuePriority::kNormal)),
        fixture_(shape),
        params_(params),
        workspace_(*backend_, {.kv = fixture_.pool().geometry,
                               .num_heads = fixture_.sequence().num_heads,
                               .window = shape.window,
                               .max_slots = std::max(max_slots, shape.num_slots),
                               .max_budget = params.budget}) {}

  CompressFixture& fixture() { return fixture_; }
  const CompressionPlan& plan() const { return plan_; }

  void run(int shared = 0) {
    const int b = fixture_.shape().block_size;
    const int num_slots = fixture_.shape().num_slots, num_fresh = fresh_blocks_needed(shared, num_slots, params_, b);
    const auto fresh = to_ids({fixture_.unused().begin(), fixture_.unused().begin() + num_fresh});
    const auto table = to_ids(fixture_.table());
    plan_ = plan_compression(table, shared, fresh, num_slots, params_, b);
    expected_ = {};
    for (int layer = 0; layer < fixture_.shape().num_layers; ++layer) {
      auto& row = expected_.emplace_back();
      for (int head = 0; head < fixture_.shape().num_kv_heads; ++head) {
        row.push_back(oracle::compress_head(fixture_.sequence(), layer, head, params_, b));
      }
    }
    compress(*backend_, *queue_,
             {.num_heads = fixture_.sequence().num_heads,
              .scale = static_cast<float>(fixture_.sequence().scale),
              .cos_sin = fixture_.cos_sin(),
              .rotary_dim = fixture_.shape().rotary_dim},
             {.params = params_,
              .kv = fixture_.pool(),
              .ring = fixture_.ring(),
              .query_slot = CompressFixture::kQuerySlot,
              .table = table,
              .targets = plan_.targets,
              .num_retained = plan_.num_retained,
              .num_slots = num_slots,
              .num_scored = fixture_.shape().num_scored,
              .logical_len = fixture_.sequence().logical_len,
              .prompt_len = fixture_.shape().prompt_len},
             workspace_);
    queue_->synchronize();
  }

  // The slots that stayed, found by their positions, after checking K, V and S of each.
  void read_kept(Grid& kept) const {
    const int b = fixture_.shape().block_size;
    kept.clear();
    for (int layer = 0; layer < fixture_.shape().num_layers; ++layer) {
      auto& row = kept.emplace_back();
      for (int head = 0; head < fixture_.shape().num_kv_heads; ++head) {
        const oracle::Head& h = fixture_.sequence().heads[static_cast<size_t>(layer)][static_cast<size_t>(head)];
        const cpu::KvLayerView view(fixture_.pool(), layer);
        auto& slots = row.emplace_back();
        for (int i = 0; i < params_.budget; ++i) {
          const int block = plan_.targets[static_cast<size_t>(i / b)].value();
          const int position = view.positions(block, head)[i % b];
          const auto at = std::lower_bound(h.position.begin(), h.position.end(), position) - h.position.begin();
          ASSERT_TRUE(at < std::ssize(h.position) && h.position[static_cast<size_t>(at)] == position)
              << "C9: slot " << i << " has position " << position << ", which no slot had";
          ASSERT_TRUE(slots.empty() || slots.back() < at) << "C5: slot " << i;
          slots.push_back(static_cast<int>(at));
          ASSERT_NO_FATAL_FAILURE(expect_row(layer, head, i, static_cast<size_t>(at)));
        }
      }
    }
  }

  // C3, C4 and the choice itself: what differs from the oracle's must lie within fp32 error of the cut.
  void expect_kept_as_the_oracle(const Grid& kept) const {
    for (size_t layer = 0; layer < kept.size(); ++layer) {
      for (size_t head = 0; head < kept[layer].size(); ++head) {
        const oracle::HeadResult& want = expected_[layer][head];
        ASSERT_EQ(kept[layer][head].size(), static_cast<size_t>(params_.budget)) << "C3";
        const oracle::Row& f = want.final_scores;
        for (size_t t = 0; t < f.size(); ++t) {
          const bool stayed =
              std::binary_search(kept[layer][head].begin(), kept[layer][head].end(), static_cast<int>(t));
          ASSERT_TRUE(stayed || !std::isinf(f[t])) << "C4: protected slot " << t << " is gone";
        }
        if (params_.random) continue;
        ASSERT_NO_FATAL_FAILURE(expect_close_cut(want, kept[layer][head], layer, head));
      }
    }
  }

  // After read_kept(): the fixture goes on from what was kept.
  void become(const Grid& kept) {
    std::vector<std::vector<oracle::Row>> scores;
    for (const auto& row : expected_) {
      auto& out = scores.emplace_back();
      for (const auto& result : row) out.push_back(result.scores);
    }
    fixture_.become(kept, scores, to_ints(plan_.table_after()));
  }

 private:
  void expect_row(int layer, int head, int i, size_t t) const {
    const int b = fixture_.shape().block_size;
    const int block = plan_.targets[static_cast<size_t>(i / b)].value();
    const oracle::Head& h = fixture_.sequence().heads[static_cast<size_t>(layer)][static_cast<size_t>(head)];
    const cpu::KvLayerView view(fixture_.pool(), layer);
    std::vector<float> k(static_cast<size_t>(fixture_.shape().head_dim)), v = k;
    view.read_key(block, head, i % b, k.data());
    view.read_value(block, head, i % b, v.data());
    ASSERT_EQ(oracle::Row(k.begin(), k.end()), h.k[t]) << "slot " << i << " from " << t;
    ASSERT_EQ(oracle::Row(v.begin(), v.end()), h.v[t]) << "slot " << i << " from " << t;
    if (!params_.attention) return;
    const double s = expected_[static_cast<size_t>(layer)][static_cast<size_t>(head)].scores[t];
    ASSERT_NEAR(view.scores(block, head)[i % b], s, 1e-6 + 1e-4 * s) << "S of slot " << i << " from " << t;
  }

  void expect_close_cut(const oracle::HeadResult& want, const std::vector<int>& got, size_t layer, size_t head) const {
    std::vector<int> missing, extra;
    std::set_difference(want.kept.begin(), want.kept.end(), got.begin(), got.end(), std::back_inserter(missing));
    std::set_difference(got.begin(), got.end(), want.kept.begin(), want.kept.end(), std::back_inserter(extra));
    if (missing.empty()) return;
    const oracle::Row f =
        params_.whole_blocks ? oracle::block_means(want.final_scores, fixture_.shape().block_size) : want.final_scores;
    double cut = std::numeric_limits<double>::infinity();
    for (int t : want.kept) cut = std::min(cut, f[static_cast<size_t>(t)]);
    for (const auto* swapped : {&missing, &extra}) {
      for (int t : *swapped) {
        const double tolerance = 2 * *std::max_element(want.tolerance.begin(), want.tolerance.end());
        ASSERT_NEAR(f[static_cast<size_t>(t)], cut, tolerance)
            << fixture_.shape().describe() << ": layer " << layer << " head " << head << " slot " << t << " is "
            << (swapped == &missing ? "missing" : "kept instead") << ", the cut is at " << cut;
      }
    }
  }

  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Queue> queue_;
  CompressFixture fixture_;
  CompressionParams params_;
  CompressionWorkspace workspace_;
  CompressionPlan plan_;
  std::vector<std::vector<oracle::HeadResult>> expected_;
};

CompressionParams preset(KvPolicy policy, int budget, int slack, int window, int stride = 1) {
  CompressionOptions o;
  o.kv_policy = policy;
  o.kv_budget = budget;
  o.kv_slack = slack;
  o.query_window = window;
  o.query_stride = stride;
  return resolve(o);
}

class EveryPolicy : public ::testing::TestWithParam<KvPolicy> {};
INSTANTIATE_TEST_SUITE_P(Policy, EveryPolicy,
                         ::testing::Values(KvPolicy::kContent, KvPolicy::kZipage, KvPolicy::kRkv, KvPolicy::kSnapKv,
                                           KvPolicy::kH2o, KvPolicy::kStreaming, KvPolicy::kPage, KvPolicy::kRandom),
                         [](const auto& policy) { return std::string(name(policy.param)); });

TEST_P(EveryPolicy, KeepsWhatTheOracleKeeps) {
  for (uint32_t seed = 1; seed <= 10; ++seed) {
    Shape shape = random_shape(seed);
    shape.num_slots = std::max(shape.num_slots, 2 * shape.block_size + 1 + static_cast<int>(seed) * 7);
    const int most = (shape.num_slots - 1) / shape.block_size;
    const int budget = shape.block_size * std::max(2, static_cast<int>(seed * 7U % static_cast<uint32_t>(most)) + 1);
    if (seed % 2 == 0) shape.num_slots = shape.num_slots / shape.block_size * shape.block_size;
    shape.num_scored = std::min(shape.num_scored, shape.num_slots);
    if (budget >= shape.num_slots) continue;
    const int span = shape.window * shape.query_stride;
    const int slack = (span + shape.block_size - 1) / shape.block_size * shape.block_size;
    const CompressionParams params = preset(GetParam(), budget, slack, shape.window, shape.query_stride);
    ASSERT_TRUE(validate(params, shape.block_size).ok()) << validate(params, shape.block_size).message();
    Compression c(shape, params);
    c.run();
    Grid kept;
    ASSERT_NO_FATAL_FAILURE(c.read_kept(kept)) << shape.describe();
    ASSERT_NO_FATAL_FAILURE(c.expect_kept_as_the_oracle(kept)) << shape.describe();
  }
}

// C9: over many compressions each slot keeps the position it was written with, and S follows it.
TEST_P(EveryPolicy, C9_PositionsSurviveRepeatedCompressions) {
  const Shape shape{.num_layers = 1,
                    .num_kv_heads = 2,
                    .group = 2,
                    .head_dim = 32,
                    .block_size = 16,
                    .num_slots = 80,
                    .window = 8,
                    .prompt_len = 20};
  Compression c(shape, preset(GetParam(), 64, 16, 8));
  for (int round = 0; round < 12; ++round) {
    c.run();
    Grid kept;
    ASSERT_NO_FATAL_FAILURE(c.read_kept(kept)) << "round " << round;
    ASSERT_NO_FATAL_FAILURE(c.expect_kept_as_the_oracle(kept)) << "round " << round;
    c.become(kept);
    ASSERT_EQ(c.fixture().table().size(), 5U) << "C3: four full blocks and an empty one";
    c.fixture().append(16);
  }
}

TEST_P(EveryPolicy, C2_WritesNoSharedBlockAndNoOther) {
  const Shape shape{.num_slots = 576, .prompt_len = 130};
  const CompressionParams params = preset(GetParam(), 384, 64, 16);
  for (int shared : {1, 2, 6, 8}) {
    Compression c(shape, params);
    CompressFixture& f = c.fixture();
    std::vector<std::vector<std::byte>> before;
    for (int32_t block = 0; block < f.pool().geometry.num_blocks; ++block) before.push_back(f.block_bytes(block));
    c.run(shared);
    const std::vector<int32_t> targets = to_ints(c.plan().targets);
    for (int32_t block = 0; block < f.pool().geometry.num_blocks; ++block) {
      if (std::find(targets.begin(), targets.end(), block) != targets.end()) continue;
      ASSERT_EQ(f.block_bytes(block), before[static_cast<size_t>(block)]) << "block " << block << ", shared " << shared;
    }
    for (int i = 0; i < shared; ++i) {
      ASSERT_EQ(std::count(targets.begin(), targets.end(), f.table()[static_cast<size_t>(i)]), 0);
    }
    Grid kept;
    ASSERT_NO_FATAL_FAILURE(c.read_kept(kept));
    ASSERT_NO_FATAL_FAILURE(c.expect_kept_as_the_oracle(kept));
  }
}

TEST(Compress, OfALongPromptKeepsTheBudget) {
  const Shape shape{.num_layers = 1, .group = 2, .num_slots = 1487, .prompt_len = 1487};
  Compression c(shape, preset(KvPolicy::kContent, 512, 64, 16));
  c.run(3);
  Grid kept;
  ASSERT_NO_FATAL_FAILURE(c.read_kept(kept));
  ASSERT_NO_FATAL_FAILURE(c.expect_kept_as_the_oracle(kept));
  EXPECT_EQ(c.plan().table_after().size(), 9U);
}

TEST(Compress, WorkspaceIsAsLargeAsItSays) {
  const auto backend = make_cpu_backend({.num_threads = 1});
  const CompressionShape shape = {
      .kv = {.num_layers = 8, .num_blocks = 100, .block_size = 64, .num_kv_heads = 2, .head_dim = 64},
      .num_heads = 8,
      .window = 16,
      .max_slots = 576,
      .max_budget = 512};
  const CompressionWorkspace workspace(*backend, shape);
  const auto* first = reinterpret_cast<std::byte*>(workspace.scores());
  const auto* last = reinterpret_cast<std::byte*>(workspace.kept() + 16 * 512);
  const size_t lists = sizeof(int32_t) * (9 + 8);
  EXPECT_LE(static_cast<size_t>(last - first) + lists, CompressionWorkspace::bytes(*backend, shape));
  EXPECT_GE(workspace.pooled() - workspace.scores(), 16 * 576);
  EXPECT_EQ(workspace.target_blocks() - workspace.source_blocks(), 9);
}

}  // namespace
}  // namespace zipage::test
