#include "text/request_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "text/tokenizer.h"

namespace zipage {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

class RequestJson : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    auto tokenizer = Tokenizer::from_json_file(ZIPAGE_SOURCE_DIR "/models/reasoner/model/tokenizer.json");
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
    tokenizer_ = (*std::move(tokenizer)).release();
  }
  static void TearDownTestSuite() { delete tokenizer_; }

  RequestContext context() const {
    RequestContext context;
    context.vocab_size = 640;
    context.tokenizer = tokenizer_;
    return context;
  }

  Result<ParsedRequest> parse(RequestKind kind, std::string_view fields) const {
    return parse_request(json::parse(fields), kind, context());
  }
  // A chat with the field, which must be refused under the field's name.
  void expect_refused(const std::string& key, const std::string& value) const {
    const auto parsed =
        parse(RequestKind::kChat, R"({"messages":[{"role":"user","content":"a"}],")" + key + "\":" + value + "}");
    EXPECT_EQ(parsed.status().param(), key) << key << ": " << value;
    EXPECT_EQ(parsed.status().code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(parsed.status().message(), HasSubstr(key));
  }
  ParsedRequest chat(const std::string& fields) const {
    auto parsed = parse(RequestKind::kChat,
                        R"({"messages":[{"role":"user","content":"a"}])" + (fields.empty() ? "" : "," + fields) + "}");
    EXPECT_TRUE(parsed.ok()) << parsed.status().message();
    return parsed.ok() ? *std::move(parsed) : ParsedRequest();
  }
  SamplingParams sampling(const std::string& fields) const {
    const ParsedRequest parsed = chat(fields);
    return parsed.requests.empty() ? SamplingParams() : parsed.requests[0].request.sampling;
  }

  static const Tokenizer* tokenizer_;
};
const Tokenizer* RequestJson::tokenizer_ = nullptr;

TEST_F(RequestJson, RangesAreCheckedAndFaultsNameTheField) {
  for (const auto& [key, value] : std::vector<std::pair<std::string, std::string>>{{"temperature", "-0.1"},
                                                                                   {"top_p", "0"},
                                                                                   {"top_p", "1.01"},
                                                                                   {"top_k", "-2"},
                                                                                   {"min_p", "1.5"},
                                                                                   {"min_p", "-0.1"},
                                                                                   {"presence_penalty", "2.1"},
                                                                                   {"frequency_penalty", "-2.1"},
                                                                                   {"repetition_penalty", "0"},
                                                                                   {"max_tokens", "0"},
                                                                                   {"max_tokens", "-1"},
                                                                                   {"max_completion_tokens", "0"},
                                                                                   {"n", "0"},
                                                                                   {"min_tokens", "-1"},
                                                                                   {"top_logprobs", "21"},
                                                                                   {"prompt_logprobs", "-1"},
                                                                                   {"kv_budget", "-1"},
                                                                                   {"stop", "[\"\"]"},
                                                                                   {"stop", "\"\""},
                                                                                   {"truncate_prompt_tokens", "0"},
                                                                                   {"thinking_token_budget", "-1"}}) {
    expect_refused(key, value);
  }
}

TEST_F(RequestJson, BoundsThemselvesAreFine) {
  const SamplingParams params = sampling(
      R"("temperature":0,"top_p":1,"top_k":-1,"min_p":1,"presence_penalty":2,"frequency_penalty":-2,"seed":-9)");
  EXPECT_EQ(params.temperature, 0.0F);
  EXPECT_EQ(params.top_k, -1);
  EXPECT_EQ(params.frequency_penalty, -2.0F);
  EXPECT_EQ(params.seed, -9);
}

TEST_F(RequestJson, case_17_TinyTemperaturesAreTaken) {
  for (const char* value : {"1e-10", "1e-38", "5e-324"}) {
    const float temperature = sampling(std::string("\"temperature\":") + value).temperature;
    EXPECT_GE(temperature, 0.0F);
    EXPECT_LT(temperature, 1e-9F);
  }
}

TEST_F(RequestJson, case_12_NullFieldsAreAbsent) {
  const ParsedRequest parsed = chat(
      R"("max_tokens":null,"temperature":null,"stop":null,"seed":null,"logit_bias":null,"n":null,"stream":null,
         "logprobs":null,"top_logprobs":null,"tools":null,"kv_budget":null,"kv_policy":null,"vllm_xargs":null,
         "stream_options":null,"bad_words":null,"chat_template_kwargs":null,"truncate_prompt_tokens":null)");
  EXPECT_EQ(parsed.n, 1);
  ASSERT_EQ(parsed.requests.size(), 1U);
  EXPECT_EQ(parsed.requests[0].request.sampling.max_tokens, SamplingParams().max_tokens);
  EXPECT_EQ(parsed.requests[0].request.sampling.temperature, SamplingParams().temperature);
  EXPECT_EQ(parsed.requests[0].request.kv_budget, std::nullopt);
}

TEST_F(RequestJson, case_21_LogitBiasOutsideTheVocabularyIsRefusedAndValuesAreClamped) {
  expect_refused("logit_bias", R"({"999999":1})");
  expect_refused("logit_bias", R"({"640":1})");
  expect_refused("logit_bias", R"({"-1":1})");
  EXPECT_THAT(sampling(R"("logit_bias":{"639":200,"3":-1e9,"5":0.5})").logit_bias,
              ::testing::UnorderedElementsAre(Pair(639, 100.0F), Pair(3, -100.0F), Pair(5, 0.5F)));
}

TEST_F(RequestJson, case_23_WrongTypesAreRefusedNotCoerced) {
  for (const auto& [key, value] : std::vector<std::pair<std::string, std::string>>{{"logit_bias", R"({"a":1})"},
                                                                                   {"logit_bias", R"({"1":"1"})"},
                                                                                   {"logit_bias", "[1]"},
                                                                                   {"temperature", "\"0.7\""},
                                                                                   {"max_tokens", "\"5\""},
                                                                                   {"max_tokens", "true"},
                                                                                   {"stream", "\"yes\""},
                                                                                   {"stream", "1"},
                                                                                   {"n", "1.5"},
                                                                                   {"top_k", "2.5"},
                                                                                   {"seed", "\"7\""},
                                                                                   {"seed", "18446744073709551615"},
                                                                                   {"stop", "5"},
                                                                                   {"stop", "[1]"},
                                                                                   {"ignore_eos", "0"},
                                                                                   {"tools", "{}"},
                                                                                   {"chat_template_kwargs", "[]"},
                                                                                   {"kv_policy", "3"},
                                                                                   {"vllm_xargs", "[]"},
                                                                                   {"stream_options", "true"},
                                                                                   {"logprobs", "5"},
                                                                                   {"protect_prompt", "\"no\""},
                                                                                   {"bad_words", "[1]"},
                                                                                   {"model", "1"}}) {
    expect_refused(key, value);
  }
}

TEST_F(RequestJson, case_16_TokenIdsLieBelowTheEmbeddingRows) {
  for (const char* ids : {"[200000]", "[-1]", "[2147483648]", "[1.5]", "[true]", "[640]"}) {
    const auto line = parse(RequestKind::kLine, std::string("{\"prompt_token_ids\":") + ids + "}");
    EXPECT_EQ(line.status().param(), "prompt_token_ids") << ids;
    const auto completion = parse(RequestKind::kCompletion, std::string("{\"prompt\":") + ids + "}");
    EXPECT_EQ(completion.status().param(), "prompt") << ids;
    expect_refused("stop_token_ids", ids);
    expect_refused("allowed_token_ids", ids);
  }
}

TEST_F(RequestJson, MaxCompletionTokensWins) {
  EXPECT_EQ(sampling(R"("max_tokens":5,"max_completion_tokens":7)").max_tokens, 7);
  EXPECT_EQ(sampling(R"("max_completion_tokens":7,"max_tokens":5)").max_tokens, 7);
}

TEST_F(RequestJson, MinTokensAboveMaxTokensIsRefused) {
  const auto parsed = parse(RequestKind::kLine, R"({"prompt":"a","max_tokens":5,"min_tokens":6})");
  EXPECT_EQ(parsed.status().message(), "min_tokens is 6, more than max_tokens, 5");
}

TEST_F(RequestJson, DefaultsHoldWhereAFieldIsAbsent) {
  RequestContext with_defaults = context();
  with_defaults.defaults.temperature = 0.25F;
  with_defaults.defaults.top_k = 7;
  with_defaults.defaults.max_tokens = 33;
  const auto parsed = parse_request(json::parse(R"({"prompt":"a","top_k":9})"), RequestKind::kLine, with_defaults);
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ(parsed->requests[0].request.sampling.temperature, 0.25F);
  EXPECT_EQ(parsed->requests[0].request.sampling.top_k, 9);
  EXPECT_EQ(parsed->requests[0].request.sampling.max_tokens, 33);
}

TEST_F(RequestJson, ALineHasExactlyOneKindOfPrompt) {
  EXPECT_EQ(*parse(RequestKind::kLine, R"({"prompt":"a b"})")->requests[0].prompt, "a b");
  EXPECT_THAT(*parse(RequestKind::kLine, R"({"prompt_token_ids":[1,2]})")->requests[0].prompt_token_ids,
              ElementsAre(1, 2));
  EXPECT_EQ(parse(RequestKind::kLine, R"({"messages":[{"role":"user","content":"a"}]})")->requests[0].messages.size(),
            1U);
  EXPECT_THAT(parse(RequestKind::kLine, "{}").status().message(), HasSubstr("exactly one of prompt"));
  EXPECT_THAT(parse(RequestKind::kLine, R"({"prompt":"a","prompt_token_ids":[1]})").status().message(),
              HasSubstr("not 2"));
  EXPECT_EQ(parse(RequestKind::kLine, R"({"prompt":["a"]})").status().param(), "prompt");
}

TEST_F(RequestJson, ALinesIdMayBeANumberAndOtherFieldsAreIgnored) {
  const auto parsed = parse(RequestKind::kLine, R"({"prompt":"a","id":7,"task":"boxes","answer":"1"})");
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ(parsed->id, "7");
}

TEST_F(RequestJson, ACompletionsPromptMayBeABatch) {
  EXPECT_EQ(parse(RequestKind::kCompletion, R"({"prompt":"a"})")->requests.size(), 1U);
  EXPECT_EQ(parse(RequestKind::kCompletion, R"({"prompt":[1,2,3]})")->requests.size(), 1U);
  const auto several = parse(RequestKind::kCompletion, R"({"prompt":["a","b"],"top_k":3})");
  ASSERT_EQ(several->requests.size(), 2U);
  EXPECT_EQ(*several->requests[1].prompt, "b");
  EXPECT_EQ(several->requests[1].request.sampling.top_k, 3);
  EXPECT_THAT(*parse(RequestKind::kCompletion, R"({"prompt":[[1],[2,3]]})")->requests[1].prompt_token_ids,
              ElementsAre(2, 3));
  for (const char* prompt : {"[]", "{}", "5", "[{}]", "[\"a\",5]"}) {
    EXPECT_EQ(parse(RequestKind::kCompletion, std::string("{\"prompt\":") + prompt + "}").status().param(), "prompt")
        << prompt;
  }
  EXPECT_EQ(parse(RequestKind::kCompletion, "{}").status().message(), "prompt is missing");
}

TEST_F(RequestJson, MessagesKeepUnknownFieldsAndJoinTextParts) {
  const auto parsed = parse(RequestKind::kChat,
                            R"({"messages":[{"role":"assistant","content":null,"tool_calls":[{"id":"x"}]},
       {"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}]})");
  ASSERT_TRUE(parsed.ok()) << parsed.status().message();
  const json first = json::parse(parsed->requests[0].messages[0].json);
  EXPECT_TRUE(first["content"].is_null());
  EXPECT_EQ(first["tool_calls"][0]["id"], "x");
  EXPECT_EQ(json::parse(parsed->requests[0].messages[1].json)["content"], "a\nb");
}

TEST_F(RequestJson, BadMessagesAreRefused) {
  for (const char* messages : {"[]", "{}", "\"a\"", "[5]", R"([{"content":"a"}])", R"([{"role":5}])",
                               R"([{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]}])"}) {
    const auto parsed = parse(RequestKind::kChat, std::string("{\"messages\":") + messages + "}");
    EXPECT_EQ(parsed.status().param(), "messages") << messages;
  }
}

TEST_F(RequestJson, LogprobsAreANumberForCompletionsAndABooleanForChats) {
  EXPECT_EQ(sampling(R"("logprobs":true,"top_logprobs":3)").logprobs, 3);
  EXPECT_EQ(sampling(R"("logprobs":true)").logprobs, 0);
  EXPECT_EQ(sampling(R"("logprobs":false)").logprobs, std::nullopt);
  expect_refused("top_logprobs", "3");
  EXPECT_EQ(parse(RequestKind::kCompletion, R"({"prompt":"a","logprobs":2})")->requests[0].request.sampling.logprobs,
            2);
  EXPECT_EQ(parse(RequestKind::kCompletion, R"({"prompt":"a","logprobs":true})").status().param(), "logprobs");
}

TEST_F(RequestJson, KvFieldsComePlainOrInsideVllmXargs) {
  const Request plain = chat(R"("kv_budget":512,"kv_policy":"zipage","protect_prompt":true)").requests[0].request;
  EXPECT_EQ(plain.kv_budget, 512);
  EXPECT_EQ(plain.kv_policy, KvPolicy::kZipage);
  EXPECT_EQ(plain.protect_prompt, true);
  const Request inside = chat(R"("vllm_xargs":{"kv_budget":256,"kv_policy":"h2o"},"kv_budget":0)").requests[0].request;
  EXPECT_EQ(inside.kv_budget, 0);
  EXPECT_EQ(inside.kv_policy, KvPolicy::kH2o);
  expect_refused("kv_policy", "\"zippage\"");
}

TEST_F(RequestJson, BadWordsAreTokenizedAtTheStartAndAfterASpace) {
  const auto words = sampling(R"("bad_words":["has"])").bad_words;
  EXPECT_THAT(words, ElementsAre(tokenizer_->encode("has", false), tokenizer_->encode(" has", false)));
}

TEST_F(RequestJson, TextOptionsReachTheRequest) {
  const ParsedRequest parsed = chat(
      R"("stop":"x","include_stop_str_in_output":true,"skip_special_tokens":false,"add_generation_prompt":false,
         "chat_template_kwargs":{"enable_thinking":false},"tools":[{"type":"function","function":{"name":"f"}}],"priority":-3,"cache_salt":"s",
         "request_id":"r","truncate_prompt_tokens":-1,"stream":true,"stream_options":{"include_usage":true},
         "return_token_ids":true,"kv_stats":true,"echo":true)");
  const TextRequest& request = parsed.requests[0];
  EXPECT_THAT(request.text.stop, ElementsAre("x"));
  EXPECT_TRUE(request.text.include_stop_str_in_output);
  EXPECT_FALSE(request.text.skip_special_tokens);
  EXPECT_FALSE(request.add_generation_prompt);
  EXPECT_EQ(request.chat_template_kwargs, R"({"enable_thinking":false})");
  EXPECT_EQ(request.tools, R"([{"function":{"name":"f"},"type":"function"}])");
  EXPECT_EQ(request.request.priority, -3);
  EXPECT_EQ(request.request.cache_salt, "s");
  EXPECT_EQ(parsed.id, "r");
  EXPECT_EQ(parsed.truncate_prompt_tokens, -1);
  EXPECT_TRUE(parsed.stream && parsed.include_usage && parsed.return_token_ids && parsed.kv_stats && parsed.echo);
}

}  // namespace
}  // namespace zipage
