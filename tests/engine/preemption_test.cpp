// A request that gave way and came back is indistinguishable from one that never did.
#include <gtest/gtest.h>

#include "support/scripted_engine.h"

namespace zipage {
namespace {

struct Outcome {
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;
  FinishReason reason;
  KvStats stats;
  int steps = 0;
  bool preempted = false;
};

Outcome run(int budget, CompressionMode mode, PreemptKind kind, bool ahead, int at_step, bool twice = false) {
  EngineConfig config = scripted_config();
  config.compression.kv_budget = budget;
  config.compression_mode = mode;
  config.async_scheduling = ahead;
  ScriptedOptions options = scripted_options(config, 12);
  options.num_swap_blocks = 16;
  auto engine = scripted_engine(config, options);
  Client client{.prompt = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17}, .max_tokens = 60};
  Client neighbour{.prompt = {9, 9, 9}, .max_tokens = 70};
  Request request = client.request();
  request.sampling.logprobs = 0;
  request.sampling.seed = 7;
  request.sampling.stop_token_ids = {client.expected(60, 64)[57]};
  EXPECT_TRUE(engine->submit(std::move(request)).ok());
  EXPECT_TRUE(engine->submit(neighbour.request()).ok());
  Outcome outcome;
  while (engine->has_work()) {
    if (outcome.steps == at_step || (twice && outcome.steps == at_step + 1)) {
      outcome.preempted |= engine->preempt_running(0, kind);
    }
    engine->step();
    engine->check();
    ++outcome.steps;
  }
  EXPECT_EQ(neighbour.got, neighbour.expected(70, 64));
  outcome.tokens = client.got;
  for (const TokenLogprobs& entry : client.logprobs) outcome.logprobs.push_back(entry.logprob);
  outcome.reason = client.last.finish_reason;
  outcome.stats = client.last.kv_stats;
  return outcome;
}

class PreemptedAtEveryStep : public testing::TestWithParam<std::tuple<int, CompressionMode, PreemptKind, bool>> {};

TEST_P(PreemptedAtEveryStep, case_41_ChangesNothing) {
  const auto [budget, mode, kind, ahead] = GetParam();
  const Outcome undisturbed = run(budget, mode, kind, /*ahead=*/false, -1);
  ASSERT_EQ(undisturbed.reason, FinishReason::kStop);
  int preempted = 0;
  for (int step = 1; step < undisturbed.steps; ++step) {
    for (bool twice : {false, true}) {
      const Outcome outcome = run(budget, mode, kind, ahead, step, twice);
      ASSERT_EQ(outcome.tokens, undisturbed.tokens) << "preempted at step " << step;
      ASSERT_EQ(outcome.logprobs, undisturbed.logprobs) << "preempted at step " << step;
      ASSERT_EQ(outcome.reason, undisturbed.reason);
      // One whose last token was on its way when it gave way ends while it is computed again.
      if (!ahead || outcome.stats.compressions > 0) {
        ASSERT_EQ(outcome.stats.resident_tokens, undisturbed.stats.resident_tokens);
        ASSERT_EQ(outcome.stats.compressions, undisturbed.stats.compressions);
      }
      preempted += outcome.preempted;
    }
  }
  // A swap needs a compression before it; a recomputation works at any step but while the lane works.
  EXPECT_GT(preempted, budget > 0 ? 20 : 100);
}

INSTANTIATE_TEST_SUITE_P(Recompute, PreemptedAtEveryStep,
                         testing::Combine(testing::Values(0, 16, 32),
                                          testing::Values(CompressionMode::kInline, CompressionMode::kAsync),
                                          testing::Values(PreemptKind::kRecompute), testing::Bool()));
INSTANTIATE_TEST_SUITE_P(Swap, PreemptedAtEveryStep,
                         testing::Combine(testing::Values(16, 32),
                                          testing::Values(CompressionMode::kInline, CompressionMode::kAsync),
                                          testing::Values(PreemptKind::kSwap), testing::Bool()));

TEST(Preemption, case_42_TwoThatDoNotFitTogetherBothEnd) {
  EngineConfig config = scripted_config();
  config.max_num_batched_tokens = 16;
  config.enable_prefix_caching = false;
  auto engine = scripted_engine(config, scripted_options(config, 6));
  Client a{.prompt = std::vector<int32_t>(50, 1), .max_tokens = 40};
  Client b{.prompt = std::vector<int32_t>(50, 2), .max_tokens = 40};
  ASSERT_TRUE(engine->submit(a.request()).ok());
  ASSERT_TRUE(engine->submit(b.request()).ok());
  while (engine->step()) engine->check();
  EXPECT_EQ(a.got, a.expected(40, 64));
  EXPECT_EQ(b.got, b.expected(40, 64));
  EXPECT_EQ(a.last.kv_stats.preemptions, 0);
  EXPECT_LE(b.last.kv_stats.preemptions, 2);
}

TEST(Preemption, case_43_APoolThatCannotGrowEndsTheRequestAndNotTheEngine) {
  EngineConfig config = scripted_config();
  auto engine = scripted_engine(config, scripted_options(config, 2));
  Client full{.prompt = std::vector<int32_t>(30, 1), .max_tokens = 20};
  Client next{.prompt = std::vector<int32_t>(3, 2), .max_tokens = 5};
  ASSERT_TRUE(engine->submit(full.request()).ok());
  ASSERT_TRUE(engine->submit(next.request()).ok());
  while (engine->step()) engine->check();
  EXPECT_EQ(full.last.finish_reason, FinishReason::kLength);
  EXPECT_EQ(full.got, full.expected(3, 64));
  EXPECT_EQ(next.got, next.expected(5, 64));
}

// The count of tokens to compute is taken after the look into the cache: with the first 464 of 465 tokens still there,
// one is left, and no step reaches beyond the sequence.
TEST(Preemption, case_33_AResumedRequestThatHitsTheCacheComputesOnlyTheRest) {
  EngineConfig config = scripted_config();
  config.max_num_batched_tokens = 512;
  ScriptedOptions options = scripted_options(config, 40);
  auto engine = scripted_engine(config, options);
  Client client{.prompt = std::vector<int32_t>(450, 3), .max_tokens = 40};
  ASSERT_TRUE(engine->submit(client.request()).ok());
  while (client.got.size() < 15) engine->step();
  const EngineStats before = engine->stats();
  ASSERT_TRUE(engine->preempt_running(0, PreemptKind::kRecompute));
  engine->step();
  engine->check();
  EXPECT_LE(engine->stats().last_step_tokens, 17);                         // the block that was not full, and a token
  EXPECT_EQ(engine->stats().prefix_cache_hits, before.prefix_cache_hits);  // recomputation is no hit
  while (engine->step()) engine->check();
  EXPECT_EQ(client.got, client.expected(40, 64));
  EXPECT_EQ(client.last.kv_stats.preemptions, 1);
}

// With a compression of its own in flight a request is preempted, aborted, or both: the result that arrives afterwards
// finds nobody to write for.
TEST(Preemption, case_39_AResultThatComesLateTouchesNothing) {
  for (int at_step = 1; at_step < 60; ++at_step) {
    for (const bool abort : {false, true}) {
      EngineConfig config = scripted_config();
      config.compression.kv_budget = 16;
      config.compression_mode = CompressionMode::kAsync;
      ScriptedOptions options = scripted_options(config, 6);
      options.num_swap_blocks = 4;
      auto engine = scripted_engine(config, options);
      Client client{.prompt = {1, 2, 3, 4}, .max_tokens = 60};
      Client other{.prompt = {5, 6}, .max_tokens = 60};
      const auto id = engine->submit(client.request());
      ASSERT_TRUE(id.ok());
      ASSERT_TRUE(engine->submit(other.request()).ok());
      for (int i = 0; i < at_step; ++i) engine->step();
      for (const PreemptKind kind : {PreemptKind::kSwap, PreemptKind::kRecompute}) engine->preempt_running(0, kind);
      if (abort) engine->abort(*id);
      while (engine->step()) engine->check();
      EXPECT_EQ(client.num_finished, 1);
      EXPECT_EQ(client.got, client.expected(static_cast<int>(client.got.size()), 64));
      EXPECT_EQ(client.got.size() == 60, !abort || client.last.finish_reason == FinishReason::kLength);
      EXPECT_EQ(other.got, other.expected(60, 64));
      EXPECT_EQ(engine->stats().blocks_live, 0);
    }
  }
}

// Alone in a pool that is too small for the next block: it waits or ends, and is never in two places.
TEST(Preemption, case_40_TheOnlyRunningRequestIsNotScheduledInTheStepThatPreemptsIt) {
  EngineConfig config = scripted_config();
  config.enable_prefix_caching = false;
  auto engine = scripted_engine(config, scripted_options(config, 3));
  Client client{.prompt = std::vector<int32_t>(20, 1), .max_tokens = 28};
  ASSERT_TRUE(engine->submit(client.request()).ok());
  while (client.got.size() < 5) engine->step();
  ASSERT_TRUE(engine->preempt_running(0, PreemptKind::kRecompute));
  EXPECT_FALSE(engine->preempt_running(0, PreemptKind::kRecompute));  // it runs no more
  engine->check();
  while (engine->step()) {
    engine->check();
    const EngineStats stats = engine->stats();
    ASSERT_LE(stats.num_running + stats.num_waiting, 1);
  }
  EXPECT_EQ(client.got, client.expected(28, 64));
}

}  // namespace
}  // namespace zipage
