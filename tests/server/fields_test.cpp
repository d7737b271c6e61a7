// What request fields do to answers, field by field.
#include "server/server_test.h"

namespace zipage {
namespace {

using ::testing::HasSubstr;

class Fields : public ServerTest {
 protected:
  std::vector<json> chunks(const std::string& path, json body) {
    body["stream"] = true;
    const HttpReply reply = post(path, body);
    EXPECT_EQ(reply.status, 200) << reply.body;
    EXPECT_FALSE(reply.events.empty());
    EXPECT_EQ(reply.events.back(), "[DONE]");
    std::vector<json> result;
    for (size_t i = 0; i + 1 < reply.events.size(); ++i) result.push_back(json::parse(reply.events[i]));
    return result;
  }
  std::string streamed_text(const json& body) {
    std::string text;
    for (const json& chunk : chunks("/v1/completions", body)) text += chunk["choices"][0]["text"];
    return text;
  }
};

TEST_F(Fields, case_09_10_StopStringsEndBothWaysOfAnswering) {
  start();
  json body = {{"prompt", "SAY[ABCDEFGHIJKL]"}, {"stop", "DEFGHIJ"}, {"max_tokens", 50}};
  json choice = complete(body)["choices"][0];
  EXPECT_EQ(choice["text"], "ABC");
  EXPECT_EQ(choice["finish_reason"], "stop");
  EXPECT_EQ(choice["stop_reason"], "DEFGHIJ");
  EXPECT_EQ(streamed_text(body), "ABC");
  body["include_stop_str_in_output"] = true;
  EXPECT_EQ(complete(body)["choices"][0]["text"], "ABCDEFGHIJ");
  EXPECT_EQ(streamed_text(body), "ABCDEFGHIJ");
}

TEST_F(Fields, case_11_TextThatOnlyResemblesAStopIsReleased) {
  start();
  EXPECT_EQ(streamed_text({{"prompt", "SAY[ABCDEFX]"}, {"stop", {"DEFG"}}, {"max_tokens", 50}}), "ABCDEFX");
}

TEST_F(Fields, StopTokenIdsAreTheReason) {
  start();
  const json choice = complete({{"prompt", "IDS[72,105,33]"}, {"stop_token_ids", {105}}})["choices"][0];
  EXPECT_EQ(choice["text"], "H");
  EXPECT_EQ(choice["stop_reason"], 105);
}

TEST_F(Fields, IgnoreEosGoesOnToTheLength) {
  start();
  const json answer = complete({{"prompt", "SAY[a]"}, {"ignore_eos", true}, {"max_tokens", 7}});
  EXPECT_EQ(answer["usage"]["completion_tokens"], 7);
  EXPECT_EQ(answer["choices"][0]["finish_reason"], "length");
}

TEST_F(Fields, ContinuousUsageCountsInEveryChunk) {
  start();
  const json options = {{"include_usage", true}, {"continuous_usage_stats", true}};
  const auto got = chunks("/v1/completions", {{"prompt", "IDS[72,105]"}, {"stream_options", options}});
  for (size_t i = 0; i + 1 < got.size(); ++i) {
    EXPECT_EQ(got[i]["usage"]["completion_tokens"], i + 1);
    EXPECT_EQ(got[i]["usage"]["total_tokens"], got[i]["usage"]["prompt_tokens"].get<size_t>() + i + 1);
  }
  EXPECT_EQ(got.back()["choices"], json::array());
}

TEST_F(Fields, ReturnTokenIdsShowsPromptAndOutput) {
  start();
  const json body = {{"prompt", {73, 68, 83, 91, 55, 50, 93}}, {"return_token_ids", true}};
  const json choice = complete(body)["choices"][0];
  EXPECT_EQ(choice["prompt_token_ids"], body["prompt"]);
  EXPECT_EQ(choice["token_ids"], (json{72, kScriptEnd}));
  const auto got = chunks("/v1/completions", body);
  EXPECT_EQ(got[0]["choices"][0]["prompt_token_ids"], body["prompt"]);
  EXPECT_EQ(got[0]["choices"][0]["token_ids"], json{72});
  EXPECT_EQ(got[1]["choices"][0]["prompt_token_ids"], nullptr);
  EXPECT_EQ(got[1]["choices"][0]["token_ids"], json{kScriptEnd});
  const json chatted = chat({{"messages", user("IDS[72]")}, {"return_token_ids", true}});
  EXPECT_EQ(chatted["choices"][0]["token_ids"], (json{72, kScriptEnd}));
  EXPECT_EQ(chatted["prompt_token_ids"].size(), chatted["usage"]["prompt_tokens"].get<size_t>());
}

TEST_F(Fields, PromptLogprobsHaveAnEntryForEachPromptToken) {
  start();
  const json choice =
      complete({{"prompt", json::array({73, 68, 83, 91, 55, 50, 93})}, {"prompt_logprobs", 1}})["choices"][0];
  ASSERT_EQ(choice["prompt_logprobs"].size(), 7U);
  EXPECT_EQ(choice["prompt_logprobs"][0], nullptr);
  EXPECT_EQ(choice["prompt_logprobs"][1]["68"]["decoded_token"], "D");
  EXPECT_EQ(choice["prompt_logprobs"][1]["68"]["rank"], 1);
}

TEST_F(Fields, TokensMayBeSpelledAsIds) {
  start();
  const json body = {{"prompt", "IDS[72]"}, {"logprobs", 0}, {"return_tokens_as_token_ids", true}};
  EXPECT_EQ(complete(body)["choices"][0]["logprobs"]["tokens"][0], "token_id:72");
}

TEST_F(Fields, TheRequestIdIsTheClients) {
  serving_options.request_id_headers = true;
  start();
  EXPECT_EQ(complete({{"prompt", "SAY[a]"}, {"request_id", "mine"}})["id"], "cmpl-mine");
  const HttpReply reply =
      client().post("/v1/completions", R"({"prompt":"SAY[a]","request_id":"mine"})", "X-Request-Id: header\r\n");
  EXPECT_EQ(json::parse(reply.body)["id"], "cmpl-header");
  EXPECT_EQ(reply.headers.at("x-request-id"), "header");
}

TEST_F(Fields, TwoClientsMayUseOneId) {
  start();
  HttpClient one = client(), two = client();
  const std::string text =
      HttpClient::post_text("/v1/completions", R"({"prompt":"LOOP[a]","max_tokens":200,"request_id":"x"})");
  one.send(text);
  two.send(text);
  EXPECT_EQ(one.read_reply().status, 200);
  EXPECT_EQ(two.read_reply().status, 200);
}

TEST_F(Fields, KvStatsComeWithTheUsageOnRequest) {
  start();
  EXPECT_FALSE(complete({{"prompt", "SAY[a]"}})["usage"].contains("kv_stats"));
  const json usage = complete({{"prompt", "SAY[a]"}, {"kv_stats", true}})["usage"];
  EXPECT_EQ(usage["kv_stats"]["evicted_tokens"], 0);
  EXPECT_TRUE(usage["kv_stats"].contains("compressions"));
  EXPECT_TRUE(usage["kv_stats"].contains("swaps"));
}

TEST_F(Fields, CachedTokensAreCountedAndSaltsKeepThemApart) {
  start();
  const std::string prompt = "SAY[a] " + std::string(200, 'z');
  const auto cached = [&](const char* salt) {
    const json answer = complete({{"prompt", prompt}, {"cache_salt", salt}});
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"].get<int>();
  };
  EXPECT_EQ(cached("one"), 0);
  EXPECT_GT(cached("one"), 0);
  EXPECT_EQ(cached("two"), 0);
}

TEST_F(Fields, ReasoningCanBeLeftOutOfTheAnswer) {
  start();
  const json body = {{"messages", user("SAY[<think>one</think>two]")}, {"include_reasoning", false}};
  EXPECT_EQ(chat(body)["choices"][0]["message"]["reasoning_content"], nullptr);
  for (const json& chunk : chunks("/v1/chat/completions", body)) {
    EXPECT_FALSE(chunk["choices"][0]["delta"].contains("reasoning_content"));
  }
}

TEST_F(Fields, WithoutAParserThoughtsAreContent) {
  serving_options.reasoning_parser = "";
  start();
  EXPECT_EQ(chat({{"messages", user("SAY[<think>one</think>two]")}})["choices"][0]["message"]["content"],
            "<think>one</think>two");
}

TEST_F(Fields, AContinuedMessageIsEchoedOnRequest) {
  start();
  json messages = user("x");
  messages.push_back({{"role", "assistant"}, {"content", "SAY[b]"}});
  const json body = {
      {"messages", messages}, {"continue_final_message", true}, {"add_generation_prompt", false}, {"echo", true}};
  EXPECT_EQ(chat(body)["choices"][0]["message"]["content"], "SAY[b]b");
  std::string text;
  for (const json& chunk : chunks("/v1/chat/completions", body)) {
    text += chunk["choices"][0]["delta"].value("content", "");
  }
  EXPECT_EQ(text, "SAY[b]b");
}

TEST_F(Fields, WhatIsNotOfferedIsRefusedByName) {
  start();
  for (const auto& [key, value] :
       {std::pair<const char*, json>{"suffix", "x"}, {"use_beam_search", true}, {"n", 100000}, {"best_of", 3}}) {
    const HttpReply reply = post("/v1/completions", {{"prompt", "a"}, {key, value}});
    EXPECT_EQ(reply.status, 400) << key;
    EXPECT_EQ(json::parse(reply.body)["error"]["param"], key);
  }
}

TEST_F(Fields, FieldsThatContradictTheKindOfAnswerAreRefused) {
  start();
  const auto param = [&](json body) {
    body["prompt"] = "a";
    const HttpReply reply = post("/v1/completions", body);
    EXPECT_EQ(reply.status, 400) << reply.body;
    return json::parse(reply.body)["error"]["param"].get<std::string>();
  };
  EXPECT_EQ(param({{"stream_options", {{"include_usage", true}}}}), "stream_options");
  EXPECT_EQ(param({{"stream", true}, {"prompt_logprobs", 1}}), "prompt_logprobs");
}

TEST_F(Fields, DefaultsOfTheServerHoldWhereARequestSaysNothing) {
  serving_options.force_include_usage = true;
  serving_options.return_tokens_as_token_ids = true;
  serving_options.response_role = "model";
  serving_options.auto_tool_choice = false;
  start();
  EXPECT_TRUE(chunks("/v1/completions", {{"prompt", "SAY[a]"}}).back()["usage"].contains("total_tokens"));
  EXPECT_EQ(complete({{"prompt", "IDS[72]"}, {"logprobs", 0}})["choices"][0]["logprobs"]["tokens"][0], "token_id:72");
  const json tool = {{"type", "function"}, {"function", {{"name", "f"}}}};
  const std::string call = R"(<tool_call>{"name": "f", "arguments": {}}</tool_call>)";
  const json message =
      chat({{"messages", user("SAY[" + call + "]")}, {"tools", json::array({tool})}})["choices"][0]["message"];
  EXPECT_EQ(message["role"], "model");
  EXPECT_EQ(message["content"], call);
}

TEST_F(Fields, case_15_ARequestThatCouldNeverFitIsRefusedWithNumbers) {
  model.num_blocks = 8;
  start();
  const HttpReply reply = post("/v1/completions", {{"prompt", json(std::vector<int>(140, 65))}});
  EXPECT_EQ(reply.status, 400);
  EXPECT_THAT(json::parse(reply.body)["error"]["message"].get<std::string>(), HasSubstr("9 KV blocks"));
}

}  // namespace
}  // namespace zipage
