// Prefix sharing and compression together: shared blocks are read and never written, compressed ones never offered.
#include <gtest/gtest.h>

#include <list>

#include "support/scripted_engine.h"

namespace zipage {
namespace {

std::vector<int32_t> system_prompt(int length) {
  std::vector<int32_t> tokens(static_cast<size_t>(length));
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int32_t>((i * 7 + i / 5) % 64);
  return tokens;
}

std::vector<int32_t> with_question(std::vector<int32_t> prompt, int question) {
  for (int i = 0; i < 3; ++i) prompt.push_back((question * 11 + i) % 64);
  return prompt;
}

struct SharingRun {
  std::vector<std::vector<int32_t>> answers;
  EngineStats stats;
};

SharingRun run_shared(bool prefix_caching, CompressionMode mode, int num_requests) {
  EngineConfig config = scripted_config();
  config.enable_prefix_caching = prefix_caching;
  config.compression_mode = mode;
  config.compression.kv_budget = 48;
  auto engine = scripted_engine(config, scripted_options(config, 40));
  std::list<Client> clients;
  for (int i = 0; i < num_requests; ++i) {
    clients.push_back({.prompt = with_question(system_prompt(35), i), .max_tokens = 60});
    EXPECT_TRUE(engine->submit(clients.back().request()).ok());
  }
  while (engine->step()) engine->check();
  SharingRun result;
  for (const Client& client : clients) {
    EXPECT_EQ(client.got, client.expected(60, 64));
    EXPECT_GE(client.last.kv_stats.compressions, 1);
    result.answers.push_back(client.got);
  }
  result.stats = engine->stats();
  return result;
}

TEST(Sharing, C6_ASystemPromptOfManyCompressedRequestsStaysSharedAndClean) {
  for (const CompressionMode mode : {CompressionMode::kInline, CompressionMode::kAsync}) {
    const SharingRun cached = run_shared(true, mode, 100);
    const SharingRun plain = run_shared(false, mode, 100);
    EXPECT_EQ(cached.answers, plain.answers);
    // All but those that were admitted together with the first find the prompt's two full blocks.
    EXPECT_GE(cached.stats.prefix_cache_hits, 90 * 32);
    EXPECT_EQ(cached.stats.prefix_cache_queries, 100 * 38);
    EXPECT_EQ(plain.stats.prefix_cache_hits, 0);
    EXPECT_EQ(cached.stats.blocks_live, 0);
  }
}

// What a compression retains lies where it lay, stays its own, and is in the index no longer (check() looks for C6).
TEST(Sharing, C6_RetainedBlocksStayInThePoolWhereTheyAreAndAreNotOffered) {
  for (const CompressionMode mode : {CompressionMode::kInline, CompressionMode::kAsync}) {
    EngineConfig config = scripted_config();
    config.compression.kv_budget = 48;  // its newest 32 tokens stay in any case
    config.compression_mode = mode;
    ScriptedOptions options = scripted_options(config, 16);
    int compressions = 0;
    std::vector<BlockId> retained;
    options.before_compression = [&](const Sequence& sequence, const CompressionPlan& plan) {
      ASSERT_EQ(sequence.blocks.size(), 4U);
      ASSERT_EQ(plan.targets.size(), 3U);
      EXPECT_EQ(plan.num_retained, 2);
      // The prompt's first block stays in the index, so the first compression writes to another one.
      EXPECT_EQ(plan.targets[0] == sequence.blocks[0], compressions > 0);
      if (compressions++ > 0) {
        EXPECT_EQ(std::vector<BlockId>(sequence.blocks.begin() + 1, sequence.blocks.begin() + 3), retained);
      }
      retained.assign(sequence.blocks.begin() + 2, sequence.blocks.end());
      EXPECT_EQ(std::vector<BlockId>(plan.targets.begin() + 1, plan.targets.end()), retained);
    };
    auto engine = scripted_engine(config, options);
    Client client{.prompt = system_prompt(20), .max_tokens = 100};
    ASSERT_TRUE(engine->submit(client.request()).ok());
    while (engine->step()) engine->check();
    EXPECT_EQ(client.got, client.expected(100, 64));
    EXPECT_GE(compressions, 3);

    Client follow_up{.prompt = client.prompt, .max_tokens = 1};
    follow_up.prompt.insert(follow_up.prompt.end(), client.got.begin(), client.got.begin() + 60);
    ASSERT_TRUE(engine->submit(follow_up.request()).ok());
    while (engine->step()) engine->check();
    EXPECT_EQ(follow_up.last.num_cached_tokens, 16);
  }
}

TEST(Sharing, case_38_AFollowUpOfACompressedTurnIsComputedFromCleanBlocks) {
  EngineConfig config = scripted_config();
  config.compression.kv_budget = 32;
  auto engine = scripted_engine(config, scripted_options(config, 32));
  Client first{.prompt = system_prompt(40), .max_tokens = 60};
  ASSERT_TRUE(engine->submit(first.request()).ok());
  while (engine->step()) engine->check();
  ASSERT_GE(first.last.kv_stats.compressions, 2);

  Client follow_up{.prompt = first.prompt, .max_tokens = 20};
  follow_up.prompt.insert(follow_up.prompt.end(), first.got.begin(), first.got.end());
  follow_up.prompt.push_back(3);
  ASSERT_TRUE(engine->submit(follow_up.request()).ok());
  while (engine->step()) engine->check();
  EXPECT_EQ(follow_up.got, follow_up.expected(20, 64));
  // Only what was never compressed is served: at most the first turn's clean blocks, never its answer's.
  EXPECT_LE(follow_up.last.num_cached_tokens, 64);
}

TEST(Sharing, case_32_AWhollyCachedPromptStillComputesAToken) {
  EngineConfig config = scripted_config();
  auto engine = scripted_engine(config, scripted_options(config, 16));
  for (int round = 0; round < 2; ++round) {
    Client client{.prompt = system_prompt(48), .max_tokens = 10};
    ASSERT_TRUE(engine->submit(client.request()).ok());
    while (engine->step()) engine->check();
    EXPECT_EQ(client.got, client.expected(10, 64));
    EXPECT_EQ(client.last.num_cached_tokens, round == 0 ? 0 : 32);
  }
}

TEST(Sharing, case_35_HitsOnFreeBlocksCountAgainstWhatIsFree) {
  EngineConfig config = scripted_config();
  auto engine = scripted_engine(config, scripted_options(config, 4));
  Client first{.prompt = system_prompt(50), .max_tokens = 2};
  ASSERT_TRUE(engine->submit(first.request()).ok());
  while (engine->step()) engine->check();
  // Three of the four blocks are cached; the next one hits two of them and needs two more.
  Client second{.prompt = with_question(system_prompt(45), 1), .max_tokens = 10};
  Client third{.prompt = with_question(system_prompt(34), 2), .max_tokens = 10};
  ASSERT_TRUE(engine->submit(second.request()).ok());
  ASSERT_TRUE(engine->submit(third.request()).ok());
  while (engine->step()) engine->check();
  EXPECT_EQ(second.got, second.expected(10, 64));
  EXPECT_EQ(third.got, third.expected(10, 64));
}

TEST(Sharing, SaltsKeepTenantsApart) {
  EngineConfig config = scripted_config();
  auto engine = scripted_engine(config, scripted_options(config, 16));
  for (const char* salt : {"a", "b"}) {
    Client client{.prompt = system_prompt(48), .max_tokens = 3};
    Request request = client.request();
    request.cache_salt = salt;
    ASSERT_TRUE(engine->submit(std::move(request)).ok());
    while (engine->step()) engine->check();
    EXPECT_EQ(client.last.num_cached_tokens, 0);
  }
}

TEST(Sharing, ResettingTheCacheForgetsEveryPrefix) {
  EngineConfig config = scripted_config();
  auto engine = scripted_engine(config, scripted_options(config, 16));
  for (int round = 0; round < 2; ++round) {
    Client client{.prompt = system_prompt(48), .max_tokens = 3};
    ASSERT_TRUE(engine->submit(client.request()).ok());
    while (engine->step()) engine->check();
    EXPECT_EQ(client.last.num_cached_tokens, 0);
    engine->reset_prefix_cache();
  }
}

}  // namespace
}  // namespace zipage
