// Whatever comes in whatever order: every request that fits alone ends with its own tokens, pool and slots add up after
// every step, and nobody waits for ever.
#include <gtest/gtest.h>

#include <list>
#include <random>

#include "support/scripted_engine.h"

namespace zipage {
namespace {

std::vector<int32_t> random_prompt(std::mt19937& random, int length) {
  std::vector<int32_t> prompt(static_cast<size_t>(length));
  // Few distinct beginnings, so that requests share prefixes.
  std::mt19937 text(random() % 3);
  for (int32_t& token : prompt) token = static_cast<int32_t>(text() % 64);
  if (random() % 2 == 0) prompt.back() = static_cast<int32_t>(random() % 64);
  return prompt;
}

void run_scenario(uint32_t seed, int steps) {
  std::mt19937 random(seed);
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<uint32_t>(n)); };
  EngineConfig config = scripted_config();
  config.max_num_seqs = 1 + below(6);
  config.max_num_batched_tokens = 16 + below(64);
  config.compression_mode = below(2) ? CompressionMode::kAsync : CompressionMode::kInline;
  config.kv_elastic = below(4) == 0;
  config.enable_prefix_caching = below(3) != 0;
  config.enable_chunked_prefill = below(4) != 0;
  config.scheduling_policy = below(2) ? SchedulingPolicy::kPriority : SchedulingPolicy::kFcfs;
  config.query_slots = 1 + below(3);
  config.compression.kv_budget = below(3) * 16;
  if (below(3) == 0) {  // keeps nothing but the newest, so all blocks are retained, or all but one
    config.compression.kv_policy = KvPolicy::kStreaming;
    config.compression.kv_sinks = below(2) * 4;
  }
  config.async_scheduling = below(2) == 0;
  ScriptedOptions options = scripted_options(config, 2 + below(14));
  options.num_swap_blocks = below(3) * 6;
  if (!config.enable_chunked_prefill) options.max_tokens_per_step = 4096;
  auto engine = scripted_engine(config, options);
  const bool forced = below(2) == 0;

  std::list<Client> clients;
  std::vector<std::pair<Client*, std::string>> live;
  for (int step = 0; step < steps || engine->has_work(); ++step) {
    ASSERT_LT(step, steps + 20000) << "seed " << seed << " stands still";
    // A bounded backlog: the run is about order and room, not about length.
    const auto unfinished =
        std::ranges::count_if(clients, [](const Client& client) { return client.num_finished == 0; });
    if (step < steps && unfinished < 12 && below(4) == 0) {
      Client& client = clients.emplace_back();
      client.prompt = random_prompt(random, 1 + below(70));
      client.max_tokens = 1 + below(60);
      Request request = client.request();
      request.priority = below(3);
      if (below(3) == 0) request.kv_budget = below(4) * 16;
      if (below(5) == 0) request.cache_salt = "other";
      if (below(4) == 0) request.sampling.stop_token_ids = {below(64)};
      if (below(8) == 0) request.sampling.presence_penalty = 1;
      const auto id = engine->submit(std::move(request));
      if (id.ok()) {
        live.emplace_back(&client, *id);
      } else {
        ASSERT_NE(id.status().message().find("KV blocks"), std::string::npos) << id.status().message();
        clients.pop_back();
      }
    }
    if (step < steps && !live.empty() && below(30) == 0) {
      engine->abort(live[static_cast<size_t>(below(static_cast<int>(live.size())))].second);
    }
    if (forced && step < steps && below(8) == 0) {
      engine->preempt_running(below(4), below(2) ? PreemptKind::kSwap : PreemptKind::kRecompute);
    }
    engine->step();
    engine->check();
  }
  for (const Client& client : clients) {
    ASSERT_EQ(client.num_finished, 1) << "seed " << seed;
    const auto count = static_cast<int>(client.got.size());
    ASSERT_EQ(client.got, client.expected(count, options.vocab_size)) << "seed " << seed;
    if (client.last.finish_reason == FinishReason::kAbort) continue;
    if (client.last.finish_reason == FinishReason::kStop) {
      ASSERT_EQ(client.last.stop_token_id, client.got.back()) << "seed " << seed;
      continue;
    }
    ASSERT_EQ(client.last.finish_reason, FinishReason::kLength) << client.last.error.message() << ", seed " << seed;
    if (client.last.kv_stats.compressions > 0) {
      ASSERT_EQ(count, client.max_tokens) << "seed " << seed;
    }
  }
  const EngineStats stats = engine->stats();
  ASSERT_EQ(stats.blocks_live, 0);
  ASSERT_EQ(stats.blocks_free + stats.blocks_cached, stats.blocks_total);
  ASSERT_EQ(stats.query_slots_used, 0);
}

TEST(NoStandstill, case_44_RandomTrafficOverManySeeds) {
  for (uint32_t seed = 0; seed < 2000 && !testing::Test::HasFatalFailure(); ++seed) run_scenario(seed, 250);
}

TEST(NoStandstill, case_44_OneLongRunOfRandomTraffic) {
  for (uint32_t seed = 10000; seed < 10004 && !testing::Test::HasFatalFailure(); ++seed) run_scenario(seed, 25000);
}

// Every small pool with every small set of requests: all that are let in end, with all their tokens where compression
// bounds them.
TEST(NoStandstill, EverySmallPool) {
  for (int num_blocks = 1; num_blocks <= 8; ++num_blocks) {
    for (int budget : {0, 16, 32}) {
      for (int num_requests = 1; num_requests <= 4; ++num_requests) {
        for (int prompt_len : {1, 15, 16, 17, 40, 70}) {
          for (int variant = 0; variant < 5; ++variant) {
            EngineConfig config = scripted_config();
            config.compression.kv_budget = budget;
            config.max_num_batched_tokens = variant == 1 ? 7 : 64;
            config.query_slots = variant == 2 ? 1 : 8;
            config.compression_mode = variant >= 3 ? CompressionMode::kAsync : CompressionMode::kInline;
            config.async_scheduling = variant == 4;
            ScriptedOptions options = scripted_options(config, num_blocks);
            options.num_swap_blocks = variant % 2 == 0 ? 4 : 0;
            auto engine = scripted_engine(config, options);
            std::list<Client> clients;
            for (int i = 0; i < num_requests; ++i) {
              Client& client = clients.emplace_back();
              client.prompt.assign(static_cast<size_t>(prompt_len), 5);
              client.prompt[0] = i / 2;
              client.max_tokens = 50;
              if (!engine->submit(client.request()).ok()) clients.pop_back();
            }
            int steps = 0;
            while (engine->has_work()) {
              ASSERT_LT(++steps, 5000) << num_blocks << " blocks, budget " << budget << ", " << num_requests
                                       << " requests of " << prompt_len << ", variant " << variant;
              engine->step();
              engine->check();
            }
            for (const Client& client : clients) {
              ASSERT_EQ(client.num_finished, 1);
              ASSERT_EQ(client.got, client.expected(static_cast<int>(client.got.size()), 64));
              ASSERT_GE(client.got.size(), budget > 0 ? 50U : 1U) << client.last.error.message();
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace zipage
