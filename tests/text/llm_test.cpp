#include "zipage/llm.h"

#include <gtest/gtest.h>

#include <future>

#include "text/fake_engine.h"
#include "text/text_model.h"

namespace zipage {
namespace {

using Piece = FakeEngine::Piece;

const std::string kReasoner = std::string(ZIPAGE_SOURCE_DIR) + "/models/reasoner/model";

// An LLM over a fake engine with the reasoner's tokenizer, whose ids below 256 are bytes.
class LlmTest : public testing::Test {
 protected:
  void SetUp() override {
    EngineConfig config;
    config.model = kReasoner;
    auto model = load_text_model(config, "");
    ASSERT_TRUE(model.ok()) << model.status().message();
    start(std::move(model).value());
  }
  void start(TextModel model) {
    llm.reset();
    auto owned = std::make_unique<FakeEngine>(std::vector<int32_t>{611});
    engine = owned.get();
    llm = make_llm(std::move(owned), std::move(model));
  }
  static std::vector<int32_t> bytes(std::string_view text) {
    std::vector<int32_t> ids;
    for (const char c : text) ids.push_back(static_cast<uint8_t>(c));
    return ids;
  }

  struct Run {
    std::vector<TextOutput> pieces;
    std::string text() const {
      std::string joined;
      for (const TextOutput& piece : pieces) joined += piece.delta;
      return joined;
    }
    const TextOutput& last() const { return pieces.back(); }
  };
  Run run(TextRequest request, std::vector<Piece> script) {
    engine->script(std::move(script));
    auto result = std::make_shared<Run>();
    auto done = std::make_shared<std::promise<void>>();
    const auto id = llm->submit(std::move(request), [result, done](TextOutput&& output) {
      result->pieces.push_back(std::move(output));
      if (result->pieces.back().finished()) done->set_value();
    });
    EXPECT_TRUE(id.ok()) << id.status().message();
    if (!id.ok()) return {};
    EXPECT_EQ(done->get_future().wait_for(std::chrono::seconds(20)), std::future_status::ready);
    return *result;
  }
  static TextRequest prompt(std::string text) {
    TextRequest request;
    request.prompt = std::move(text);
    return request;
  }

  FakeEngine* engine = nullptr;
  std::unique_ptr<LLM> llm;
};

TEST_F(LlmTest, TextComesInWholeCharactersAndEndsWithTheEnginesReason) {
  const Run out = run(prompt("x"), {{bytes("h\xC3")}, {bytes("\xA9")}, {bytes("!\xE2\x82"), FinishReason::kLength}});
  EXPECT_EQ(out.text(), "hé!\uFFFD");
  EXPECT_EQ(out.pieces[0].delta, "h");
  EXPECT_EQ(out.last().finish_reason, FinishReason::kLength);
  EXPECT_EQ(out.last().stop_reason, "");
  EXPECT_EQ(out.last().tokens.num_output_tokens, 6);
}

TEST_F(LlmTest, case_09_AStopStringAcrossTokensEndsTheRequest) {
  TextRequest request = prompt("x");
  request.text.stop = {"DEFGHIJ"};
  const Run out =
      run(std::move(request), {{bytes("ABC")}, {bytes("DEF")}, {bytes("G")}, {bytes("HIJKL")}, {bytes("more")}});
  EXPECT_EQ(out.text(), "ABC");
  EXPECT_EQ(out.last().finish_reason, FinishReason::kStop);
  EXPECT_EQ(out.last().stop_reason, "DEFGHIJ");
  EXPECT_EQ(out.last().tokens.kv_stats.compressions, 3);
  EXPECT_EQ(engine->aborted.size(), 1U);
}

TEST_F(LlmTest, case_10_UsageCountsTheTokensUpToTheStopString) {
  TextRequest request = prompt("x");
  request.text.stop = {"fox"};
  request.text.include_stop_str_in_output = true;
  const Run out = run(std::move(request), {{bytes("a foxes")}, {bytes("!!")}});
  EXPECT_EQ(out.text(), "a fox");
  EXPECT_EQ(out.last().tokens.num_output_tokens, 5);
  EXPECT_EQ(out.pieces[0].tokens.new_token_ids, bytes("a fox"));
}

TEST_F(LlmTest, AStopStringInTheLastPieceIsAStop) {
  TextRequest request = prompt("x");
  request.text.stop = {"b"};
  const Run out = run(std::move(request), {{bytes("abc"), FinishReason::kLength}});
  EXPECT_EQ(out.text(), "a");
  EXPECT_EQ(out.last().finish_reason, FinishReason::kStop);
  EXPECT_EQ(out.last().stop_reason, "b");
}

TEST_F(LlmTest, HeldTextIsReleasedAtTheEnd) {
  TextRequest request = prompt("x");
  request.text.stop = {"never"};
  EXPECT_EQ(run(std::move(request), {{bytes("ab nev")}, {{611}, FinishReason::kStop}}).text(), "ab nev");
}

TEST_F(LlmTest, TheTokenThatEndsATextIsNotShown) {
  TextRequest request = prompt("x");
  request.text.skip_special_tokens = false;
  EXPECT_EQ(run(request, {{bytes("ab")}, {{611}, FinishReason::kStop}}).text(), "ab");
  request.text.include_stop_str_in_output = true;
  EXPECT_EQ(run(request, {{bytes("ab")}, {{611}, FinishReason::kStop}}).text(), "ab<|im_end|>");
}

TEST_F(LlmTest, AStopIdIsTheStopReasonAndEosIsNone) {
  TextRequest request = prompt("x");
  request.request.sampling.stop_token_ids = {'q'};
  const Run stopped = run(request, {{bytes("abq"), FinishReason::kStop, 'q'}});
  EXPECT_EQ(stopped.text(), "ab");
  EXPECT_EQ(stopped.last().stop_reason, "113");
  // 609 is an EOS of generation_config.json that the engine does not know by itself.
  const Run ended = run(request, {{{'a', 609}, FinishReason::kStop, 609}});
  EXPECT_EQ(engine->last_request.sampling.stop_token_ids, (std::vector<int32_t>{'q', 609}));
  EXPECT_EQ(ended.text(), "a");
  EXPECT_EQ(ended.last().stop_reason, "");
  EXPECT_FALSE(ended.last().tokens.stop_token_id.has_value());
}

TEST_F(LlmTest, IgnoreEosAddsNoStopIds) {
  TextRequest request = prompt("x");
  request.request.sampling.ignore_eos = true;
  run(request, {{bytes("a"), FinishReason::kLength}});
  EXPECT_TRUE(engine->last_request.sampling.stop_token_ids.empty());
}

TEST_F(LlmTest, MessagesAreRenderedAndTokenized) {
  TextRequest request;
  request.messages = {ChatMessage::user("who")};
  run(request, {{bytes("a"), FinishReason::kLength}});
  EXPECT_EQ(llm->detokenize(engine->last_request.prompt_token_ids),
            "<|im_start|>user\nwho<|im_end|>\n<|im_start|>assistant\n");
  const auto ids = llm->tokenize(request);
  ASSERT_TRUE(ids.ok());
  EXPECT_EQ(*ids, engine->last_request.prompt_token_ids);
}

TEST_F(LlmTest, ZeroMaxTokensIsTheRestOfTheContext) {
  TextRequest request;
  request.prompt_token_ids = std::vector<int32_t>(10, 'a');
  request.request.sampling.max_tokens = 0;
  run(request, {{bytes("a"), FinishReason::kLength}});
  EXPECT_EQ(engine->last_request.sampling.max_tokens, 54);
}

TEST_F(LlmTest, AThinkingBudgetBringsTheModelsTags) {
  TextRequest request = prompt("so <think>\n");
  request.request.sampling.thinking_token_budget = 5;
  run(request, {{bytes("a"), FinishReason::kLength}});
  EXPECT_EQ(engine->last_request.end_thinking_token_ids, std::vector<int32_t>{613});
  EXPECT_EQ(engine->last_request.begin_thinking_token_ids, std::vector<int32_t>{612});
  EXPECT_TRUE(engine->last_request.starts_thinking);
}

TEST_F(LlmTest, WhatIsWrongWithARequestNamesTheField) {
  const auto param_of = [&](TextRequest request) {
    const auto id = llm->submit(std::move(request), [](TextOutput&&) { FAIL(); });
    EXPECT_FALSE(id.ok());
    return id.status().param();
  };
  EXPECT_EQ(param_of({}), "prompt");
  TextRequest both = prompt("x");
  both.messages = {ChatMessage::user("y")};
  EXPECT_EQ(param_of(both), "prompt");
  TextRequest stop = prompt("x");
  stop.text.stop = {"a", ""};
  EXPECT_EQ(param_of(stop), "stop");
  EXPECT_EQ(param_of(prompt("")), "prompt");
  TextRequest bad_template;
  bad_template.messages = {ChatMessage::user("y")};
  bad_template.chat_template = "{{ broken";
  EXPECT_EQ(param_of(bad_template), "chat_template");
}

TEST_F(LlmTest, AModelWithoutATemplateSaysSo) {
  EngineConfig config;
  config.model = kReasoner;
  auto model = load_text_model(config, "");
  ASSERT_TRUE(model.ok());
  model->chat_template.reset();
  start(std::move(model).value());
  TextRequest request;
  request.messages = {ChatMessage::user("y")};
  const auto ids = llm->tokenize(request);
  ASSERT_FALSE(ids.ok());
  EXPECT_NE(ids.status().message().find("no chat template"), std::string::npos);
}

TEST_F(LlmTest, AbortEndsARequest) {
  auto done = std::make_shared<std::promise<FinishReason>>();
  TextRequest request = prompt("x");
  request.request.request_id = "mine";
  ASSERT_TRUE(llm->submit(request,
                          [done](TextOutput&& output) {
                            if (output.finished()) done->set_value(output.finish_reason);
                          })
                  .ok());
  const auto again = llm->submit(request, [](TextOutput&&) { FAIL(); });
  EXPECT_EQ(again.status().param(), "request_id");
  llm->abort("mine");
  EXPECT_EQ(done->get_future().get(), FinishReason::kAbort);
}

TEST_F(LlmTest, DestructionEndsWhatStillRuns) {
  int finished = 0;
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(
        llm->submit(prompt("x"), [&](TextOutput&& output) { finished += output.finish_reason == FinishReason::kAbort; })
            .ok());
  }
  llm.reset();
  EXPECT_EQ(finished, 3);
}

TEST_F(LlmTest, AnEngineThatFailsEndsItsRequestsWithTheError) {
  auto done = std::make_shared<std::promise<Status>>();
  ASSERT_TRUE(llm->submit(prompt("x"), [done](TextOutput&& output) { done->set_value(output.tokens.error); }).ok());
  engine->fail_next_run();
  EXPECT_NE(done->get_future().get().message().find("device lost"), std::string::npos);
  EXPECT_EQ(llm->submit(prompt("x"), [](TextOutput&&) {}).status().code(), StatusCode::kUnavailable);
}

TEST(TextModel, DefaultsComeFromGenerationConfigAndItsOverride) {
  EngineConfig config;
  config.model = kReasoner;
  const auto model = load_text_model(config, "");
  ASSERT_TRUE(model.ok());
  EXPECT_EQ(model->default_sampling.temperature, 0.0F);
  EXPECT_EQ(model->eos_token_ids, (std::vector<int32_t>{611, 609}));
  config.override_generation_config = R"({"temperature": 0.6, "top_k": 20, "eos_token_id": 7})";
  const auto overridden = load_text_model(config, "");
  ASSERT_TRUE(overridden.ok());
  EXPECT_EQ(overridden->default_sampling.temperature, 0.6F);
  EXPECT_EQ(overridden->default_sampling.top_k, 20);
  EXPECT_EQ(overridden->eos_token_ids, (std::vector<int32_t>{7, 611}));
  config.override_generation_config = R"({"top_p": "much"})";
  const auto wrong = load_text_model(config, "");
  ASSERT_FALSE(wrong.ok());
  EXPECT_NE(wrong.status().message().find("top_p"), std::string::npos);
  config = {};
  config.model = kReasoner;
  config.generation_config = "vllm";
  EXPECT_EQ(load_text_model(config, "").value().default_sampling.temperature, 1.0F);
}

}  // namespace
}  // namespace zipage
