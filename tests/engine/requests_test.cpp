// What a client may ask of the engine: limits, refusals in one sentence, stops, aborts, forced outputs, budgets of its
// own.
#include <gtest/gtest.h>

#include <list>

#include "support/scripted_engine.h"

namespace zipage {
namespace {

struct Fixture {
  EngineConfig config = scripted_config();
  std::unique_ptr<EngineImpl> engine;
  explicit Fixture(int num_blocks = 32, int max_model_len = 2048) {
    ScriptedOptions options = scripted_options(config, num_blocks);
    options.max_model_len = max_model_len;
    engine = scripted_engine(config, options);
  }
  void drain() {
    while (engine->step()) engine->check();
  }
  Status refuse(Request request) {
    const auto id = engine->submit(std::move(request));
    EXPECT_FALSE(id.ok());
    return id.status();
  }
};

Request request_of(std::vector<int32_t> prompt, int max_tokens) {
  Request request;
  request.prompt_token_ids = std::move(prompt);
  request.sampling.max_tokens = max_tokens;
  return request;
}

TEST(Requests, case_13_APromptAndItsMaxTokensBeyondTheContextNameAllThreeNumbers) {
  Fixture f(256);
  const Status status = f.refuse(request_of(std::vector<int32_t>(8, 1), 2045));
  EXPECT_EQ(status.param(), "max_tokens");
  for (const char* number : {"2048", " 8 ", "2045"})
    EXPECT_NE(status.message().find(number), std::string::npos) << number;
}

TEST(Requests, case_14_AnEmptyPromptIsRefusedAndTheNextOneServed) {
  Fixture f;
  EXPECT_EQ(f.refuse(request_of({}, 5)).param(), "prompt");
  Client client{.prompt = {1}, .max_tokens = 3};
  ASSERT_TRUE(f.engine->submit(client.request()).ok());
  f.drain();
  EXPECT_EQ(client.got.size(), 3U);
}

TEST(Requests, case_15_WhatCanNeverFitIsRefusedWithTheNumbers) {
  Fixture f(8);
  const Status full = f.refuse(request_of(std::vector<int32_t>(130, 1), 5));
  EXPECT_NE(full.message().find("needs 9 KV blocks"), std::string::npos) << full.message();
  // A compressed request's peak: budget + slack, or the prompt's prefill.
  Request compressed = request_of(std::vector<int32_t>(3, 1), 500);
  compressed.kv_budget = 128;
  EXPECT_NE(f.refuse(std::move(compressed)).message().find("needs 9 KV blocks"), std::string::npos);
  Client fits{.prompt = std::vector<int32_t>(3, 1), .max_tokens = 300};
  Request request = fits.request();
  request.kv_budget = 112;
  ASSERT_TRUE(f.engine->submit(std::move(request)).ok());
  f.drain();
  EXPECT_EQ(fits.got, fits.expected(300, 64));
  EXPECT_EQ(fits.last.kv_stats.peak_blocks, 8);
}

TEST(Requests, case_16_TokenIdsOutsideTheVocabularyAreRefused) {
  Fixture f;
  for (int32_t token : {64, -1, 2147483647}) EXPECT_EQ(f.refuse(request_of({token}, 5)).param(), "prompt");
}

TEST(Requests, case_21_LogitBiasOutsideTheVocabularyIsRefused) {
  Fixture f;
  Request request = request_of({1}, 5);
  request.sampling.logit_bias = {{999999, 1.0F}};
  EXPECT_EQ(f.refuse(std::move(request)).param(), "logit_bias");
}

TEST(Requests, ABudgetThatIsNoMultipleOfTheBlockIsRefused) {
  Fixture f;
  Request request = request_of({1}, 5);
  request.kv_budget = 100;
  const Status status = f.refuse(std::move(request));
  EXPECT_EQ(status.param(), "kv_budget");
  EXPECT_NE(status.message().find("100"), std::string::npos);
}

TEST(Requests, BudgetsOfTheirOwnInOneBatch) {
  Fixture f;
  std::list<Client> clients;
  for (int budget : {0, 16, 48}) {
    clients.push_back({.prompt = {1, 2, budget % 64}, .max_tokens = 120});
    Request request = clients.back().request();
    request.kv_budget = budget;
    ASSERT_TRUE(f.engine->submit(std::move(request)).ok());
  }
  f.drain();
  std::vector<int> resident, compressions;
  for (const Client& client : clients) {
    EXPECT_EQ(client.got, client.expected(120, 64));
    resident.push_back(client.last.kv_stats.resident_tokens);
    compressions.push_back(client.last.kv_stats.compressions);
    EXPECT_EQ(client.last.kv_stats.resident_tokens + client.last.kv_stats.evicted_tokens, 122);
  }
  EXPECT_EQ(resident[0], 122);
  EXPECT_LE(resident[1], 32);
  EXPECT_LE(resident[2], 64);
  EXPECT_EQ(compressions[0], 0);
  EXPECT_EQ(compressions[1], 6);
  EXPECT_EQ(compressions[2], 4);
}

TEST(Requests, ElasticAtLowLoadNeverCompresses) {
  EngineConfig config = scripted_config();
  config.kv_elastic = true;
  config.compression.kv_budget = 32;
  auto engine = scripted_engine(config, scripted_options(config, 64));
  Client alone{.prompt = {1, 2, 3}, .max_tokens = 400};
  ASSERT_TRUE(engine->submit(alone.request()).ok());
  while (engine->step()) engine->check();
  EXPECT_EQ(alone.last.kv_stats.compressions, 0);
  EXPECT_EQ(alone.got, alone.expected(400, 64));

  // Eight of them press on the pool: the longest give way, and all end in bounded room.
  std::list<Client> many;
  for (int i = 0; i < 8; ++i) {
    many.push_back({.prompt = {i, 2, 3}, .max_tokens = 400});
    ASSERT_TRUE(engine->submit(many.back().request()).ok());
  }
  while (engine->step()) engine->check();
  int compressions = 0;
  for (const Client& client : many) {
    EXPECT_EQ(client.got, client.expected(400, 64));
    compressions += client.last.kv_stats.compressions;
  }
  EXPECT_GT(compressions, 8);
}

TEST(Requests, case_25_AnAbortFreesEverythingAtTheNextStep) {
  for (const CompressionMode mode : {CompressionMode::kInline, CompressionMode::kAsync}) {
    for (int after = 0; after < 60; ++after) {
      EngineConfig config = scripted_config();
      config.compression_mode = mode;
      config.compression.kv_budget = 16;
      auto engine = scripted_engine(config, scripted_options(config, 8));
      Client client{.prompt = {1, 2, 3}, .max_tokens = 100};
      const auto id = engine->submit(client.request());
      ASSERT_TRUE(id.ok());
      for (int i = 0; i < after; ++i) engine->step();
      engine->abort(*id);
      int more = 0;
      while (engine->step()) ASSERT_LT(++more, 4);
      engine->check();
      EXPECT_EQ(client.last.finish_reason, FinishReason::kAbort);
      EXPECT_EQ(engine->stats().blocks_live, 0);
      EXPECT_EQ(engine->stats().query_slots_used, 0);
    }
  }
}

TEST(Requests, AFullQueueIsSaidAtOnce) {
  EngineConfig config = scripted_config();
  config.max_queued_requests = 2;
  auto engine = scripted_engine(config, scripted_options(config, 8));
  ASSERT_TRUE(engine->submit(request_of({1}, 2)).ok());
  ASSERT_TRUE(engine->submit(request_of({1}, 2)).ok());
  EXPECT_EQ(engine->submit(request_of({1}, 2)).status().code(), StatusCode::kResourceExhausted);
}

TEST(Requests, ForcedOutputIsReportedWithItsLogprobsAndThenContinued) {
  Fixture f;
  Client client{.prompt = {1, 2, 3}, .max_tokens = 40};
  Request request = client.request();
  const std::vector<int32_t> expected = client.expected(40, 64);
  request.forced_output_token_ids.assign(expected.begin(), expected.begin() + 25);
  request.kv_budget = 16;
  request.sampling.logprobs = 0;
  ASSERT_TRUE(f.engine->submit(std::move(request)).ok());
  f.drain();
  EXPECT_EQ(client.got, expected);
  ASSERT_EQ(client.logprobs.size(), 40U);
  for (size_t i = 0; i < 40; ++i) EXPECT_EQ(client.logprobs[i].token, expected[i]) << i;
}

TEST(Requests, PromptLogprobsComeOnceWithNoneForTheFirstToken) {
  Fixture f;
  Client client{.prompt = std::vector<int32_t>(90, 4), .max_tokens = 1};
  std::vector<std::optional<TokenLogprobs>> prompt_logprobs;
  Request request = client.request();
  request.sampling.prompt_logprobs = 0;
  request.sink = [&](RequestOutput&& output) {
    prompt_logprobs.insert(prompt_logprobs.end(), output.prompt_logprobs.begin(), output.prompt_logprobs.end());
  };
  ASSERT_TRUE(f.engine->submit(std::move(request)).ok());
  f.drain();
  ASSERT_EQ(prompt_logprobs.size(), 90U);
  EXPECT_FALSE(prompt_logprobs[0].has_value());
  for (size_t i = 1; i < 90; ++i) ASSERT_TRUE(prompt_logprobs[i].has_value()) << i;
}

TEST(Requests, PriorityGoesFirst) {
  EngineConfig config = scripted_config();
  config.scheduling_policy = SchedulingPolicy::kPriority;
  config.max_num_seqs = 1;
  auto engine = scripted_engine(config, scripted_options(config, 8));
  std::vector<int> order;
  for (int priority : {5, 3, 1, 4}) {
    Request request = request_of({1, priority}, 3);
    request.priority = priority;
    request.sink = [&order, priority](RequestOutput&& output) {
      if (output.finished()) order.push_back(priority);
    };
    ASSERT_TRUE(engine->submit(std::move(request)).ok());
  }
  while (engine->step()) engine->check();
  EXPECT_EQ(order, (std::vector{1, 3, 4, 5}));
}

}  // namespace
}  // namespace zipage
