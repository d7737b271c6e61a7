// Structured output through the whole engine, on the small reasoning model.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <nlohmann/json.hpp>
#include <set>

#include "zipage/llm.h"

namespace zipage {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using Kind = StructuredOutput::Kind;

struct Answer {
  std::string text;
  std::vector<int32_t> ids;
  TextOutput last;
};

class StructuredOutputs : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    EngineConfig config;
    config.model = std::string(ZIPAGE_SOURCE_DIR) + "/models/reasoner/model";
    config.device = "cpu";
    config.threads = 1;
    config.block_size = 16;
    config.num_gpu_blocks_override = 40;  // few: long answers preempt each other
    config.swap_space = 0;
    config.max_num_seqs = 8;
    config.max_model_len = 1024;
    config.compression.kv_budget = 0;
    auto llm = LLM::create(config);
    ASSERT_TRUE(llm.ok()) << llm.status().message();
    llm_ = std::move(*llm);
  }
  static void TearDownTestSuite() { llm_.reset(); }

  static TextRequest request(StructuredOutput what, uint64_t seed = 1) {
    TextRequest request;
    request.prompt = "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n<think></think>";
    request.request.sampling.max_tokens = 100;
    request.request.sampling.temperature = 3;
    request.request.sampling.seed = static_cast<int64_t>(seed);
    request.structured_output = std::move(what);
    request.reasoning_parser = "auto";
    return request;
  }

  static std::future<Answer> start(TextRequest request) {
    auto promise = std::make_shared<std::promise<Answer>>();
    auto answer = std::make_shared<Answer>();
    std::future<Answer> future = promise->get_future();
    const auto submitted = llm_->submit(std::move(request), [promise, answer](TextOutput&& piece) {
      answer->text += piece.delta;
      answer->ids.insert(answer->ids.end(), piece.tokens.new_token_ids.begin(), piece.tokens.new_token_ids.end());
      if (!piece.finished()) return;
      answer->last = std::move(piece);
      promise->set_value(*answer);
    });
    EXPECT_TRUE(submitted.ok()) << submitted.status().message();
    return future;
  }
  static Answer run(TextRequest request) { return start(std::move(request)).get(); }

  static std::unique_ptr<LLM> llm_;
};
std::unique_ptr<LLM> StructuredOutputs::llm_;

const std::string kSchema = R"({"type": "object", "properties": {"z": {"enum": ["one", "two", "three"]},
  "a": {"type": "integer", "minimum": 0, "maximum": 99}}, "required": ["z", "a"], "additionalProperties": false})";

TEST_F(StructuredOutputs, EverySeedsAnswerMatchesAndRepeats) {
  std::vector<std::future<Answer>> first, second;
  for (uint64_t seed = 0; seed < 6; ++seed) first.push_back(start(request({Kind::kJsonSchema, kSchema, false}, seed)));
  std::set<std::string> texts;
  std::vector<std::string> by_seed;
  for (auto& future : first) {
    const Answer answer = future.get();
    EXPECT_EQ(answer.last.finish_reason, FinishReason::kStop);
    const json value = json::parse(answer.text, nullptr, false);
    ASSERT_TRUE(value.is_object()) << answer.text;
    EXPECT_TRUE(value["a"].is_number_integer() && value["z"].is_string()) << answer.text;
    EXPECT_LT(answer.text.find("\"z\""), answer.text.find("\"a\""));  // the schema's order
    texts.insert(answer.text);
    by_seed.push_back(answer.text);
  }
  EXPECT_GT(texts.size(), 1U);
  EXPECT_EQ(run(request({Kind::kJsonSchema, kSchema, false}, 4)).text, by_seed[4]);
}

TEST_F(StructuredOutputs, PreemptedAnswersStayWithTheirGrammar) {
  // Eight answers of more than 80 tokens do not fit into 640 at once.
  const int64_t before = llm_->engine().stats().preemptions;
  std::vector<std::future<Answer>> answers;
  for (uint64_t seed = 0; seed < 8; ++seed) {
    TextRequest each = request({Kind::kRegex, "([a-f]{3}[0-9]{3},){20}end"}, seed);
    each.request.sampling.max_tokens = 200;
    answers.push_back(start(std::move(each)));
  }
  for (auto& future : answers) {
    const Answer answer = future.get();
    EXPECT_EQ(answer.last.finish_reason, FinishReason::kStop) << answer.text;
    EXPECT_EQ(answer.text.size(), 143U) << answer.text;
    EXPECT_TRUE(answer.text.ends_with(",end")) << answer.text;
  }
  EXPECT_GT(llm_->engine().stats().preemptions, before);
}

TEST_F(StructuredOutputs, OtherFieldsApplyWithinTheGrammar) {
  TextRequest biased = request({Kind::kChoice, R"(["a", "b", "c"])"});
  const int32_t c = llm_->tokenize([] {
                          TextRequest text;
                          text.prompt = "c";
                          return text;
                        }())
                        ->front();
  biased.request.sampling.logit_bias = {{c, 100.0F}};
  EXPECT_EQ(run(biased).text, "c");
  // min_tokens cannot make an answer longer than its grammar.
  TextRequest longer = request({Kind::kChoice, R"(["a"])"});
  longer.request.sampling.min_tokens = 10;
  const Answer answer = run(longer);
  EXPECT_EQ(answer.text, "a");
  EXPECT_EQ(answer.last.finish_reason, FinishReason::kStop);
  TextRequest goes_on = request({Kind::kRegex, "a+"});
  goes_on.request.sampling.min_tokens = 10;
  EXPECT_GE(run(goes_on).last.tokens.num_output_tokens, 10);
  TextRequest ignoring = request({Kind::kChoice, R"(["a"])"});
  ignoring.request.sampling.ignore_eos = true;
  EXPECT_EQ(run(ignoring).last.finish_reason, FinishReason::kStop);
  TextRequest impossible = request({Kind::kChoice, R"(["a"])"});
  impossible.request.sampling.allowed_token_ids = {c};
  const Answer failed = run(impossible);
  EXPECT_EQ(failed.last.finish_reason, FinishReason::kError);
  EXPECT_THAT(failed.last.tokens.error.message(), HasSubstr("grammar"));
}

TEST_F(StructuredOutputs, TheAnswerFollowsTheThought) {
  TextRequest thinking = request({Kind::kChoice, R"(["yes", "no"])"});
  thinking.prompt = "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n<think>\n";
  thinking.request.sampling.thinking_token_budget = 12;
  const Answer answer = run(thinking);
  EXPECT_EQ(answer.last.finish_reason, FinishReason::kStop);
  const size_t end = answer.text.find("</think>");
  ASSERT_NE(end, std::string::npos) << answer.text;
  EXPECT_THAT(answer.text.substr(end + 8), testing::AnyOf("yes", "no"));
  EXPECT_GT(end, 0U);
}

TEST_F(StructuredOutputs, AWrongGrammarIsRefusedBeforeAnythingRuns) {
  const auto submitted = llm_->submit(request({Kind::kRegex, "("}), [](TextOutput&&) { ADD_FAILURE(); });
  ASSERT_FALSE(submitted.ok());
  EXPECT_EQ(submitted.status().param(), "structured_outputs");
  EXPECT_EQ(submitted.status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace zipage
