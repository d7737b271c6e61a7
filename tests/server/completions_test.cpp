#include "server/server_test.h"

namespace zipage {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

using Completions = ServerTest;

TEST_F(Completions, ACompletionIsTheScriptsText) {
  start();
  const json answer = complete({{"model", "scripted"}, {"prompt", "SAY[hello]"}, {"max_tokens", 50}});
  EXPECT_THAT(answer["id"].get<std::string>(), StartsWith("cmpl-"));
  EXPECT_EQ(answer["object"], "text_completion");
  EXPECT_EQ(answer["model"], "scripted");
  ASSERT_EQ(answer["choices"].size(), 1U);
  EXPECT_EQ(answer["choices"][0]["text"], "hello");
  EXPECT_EQ(answer["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(answer["choices"][0]["stop_reason"], nullptr);
  EXPECT_EQ(answer["choices"][0]["logprobs"], nullptr);
  const json& usage = answer["usage"];
  EXPECT_EQ(usage["total_tokens"], usage["prompt_tokens"].get<int>() + usage["completion_tokens"].get<int>());
}

TEST_F(Completions, MaxTokensIsSixteenWhenAbsentOrNull_case_12) {
  start();
  const json answer = complete({{"prompt", "LOOP[a]"}});
  EXPECT_EQ(answer["usage"]["completion_tokens"], 16);
  EXPECT_EQ(answer["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(complete({{"prompt", "LOOP[a]"}, {"max_tokens", nullptr}})["usage"]["completion_tokens"], 16);
}

TEST_F(Completions, AStreamIsOneChunkForEachTokenThenDone) {
  start();
  const json body = {{"prompt", "IDS[72,105,33]"}, {"stream", true}, {"request_id", "r1"}, {"max_tokens", 9}};
  const HttpReply reply = post("/v1/completions", body);
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(reply.headers.at("content-type"), "text/event-stream; charset=utf-8");
  EXPECT_TRUE(reply.complete);
  ASSERT_EQ(reply.events.size(), 5U);
  const json first = json::parse(reply.events[0]);
  const auto event = [&](const std::string& text, const std::string& finish) {
    return R"({"id":"cmpl-r1","object":"text_completion","created":)" + first["created"].dump() +
           R"(,"model":"scripted","choices":[{"index":0,"text":")" + text + R"(","logprobs":null,"finish_reason":)" +
           finish + R"(,"stop_reason":null,"token_ids":null,"prompt_token_ids":null}],"usage":null})";
  };
  EXPECT_EQ(reply.events[0], event("H", "null"));
  EXPECT_EQ(reply.events[1], event("i", "null"));
  EXPECT_EQ(reply.events[2], event("!", "null"));
  EXPECT_EQ(reply.events[3], event("", "\"stop\""));
  EXPECT_EQ(reply.events[4], "[DONE]");
}

TEST_F(Completions, case_26_UsageComesLastWithEmptyChoices) {
  start();
  const HttpReply reply =
      post("/v1/completions", {{"prompt", "SAY[ab]"}, {"stream", true}, {"stream_options", {{"include_usage", true}}}});
  ASSERT_GE(reply.events.size(), 3U);
  EXPECT_EQ(reply.events.back(), "[DONE]");
  const json last = json::parse(reply.events[reply.events.size() - 2]);
  EXPECT_EQ(last["choices"], json::array());
  EXPECT_GT(last["usage"]["completion_tokens"], 0);
  for (size_t i = 0; i + 2 < reply.events.size(); ++i) {
    const json chunk = json::parse(reply.events[i]);
    ASSERT_TRUE(chunk.contains("usage"));
    EXPECT_EQ(chunk["usage"], nullptr);
    EXPECT_EQ(chunk["choices"].size(), 1U);
  }
}

TEST_F(Completions, PromptsAndSamplesAreNumberedPromptByPrompt) {
  start();
  const json answer = complete({{"prompt", {"SAY[one]", "SAY[two]"}}, {"n", 2}});
  ASSERT_EQ(answer["choices"].size(), 4U);
  const char* expected[] = {"one", "one", "two", "two"};
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(answer["choices"][i]["index"], i);
    EXPECT_EQ(answer["choices"][i]["text"], expected[i]);
  }
}

TEST_F(Completions, EchoPutsThePromptInFront) {
  start();
  EXPECT_EQ(complete({{"prompt", "SAY[b]"}, {"echo", true}})["choices"][0]["text"], "SAY[b]b");
  const HttpReply reply = post("/v1/completions", {{"prompt", "SAY[b]"}, {"echo", true}, {"stream", true}});
  EXPECT_EQ(json::parse(reply.events[0])["choices"][0]["text"], "SAY[b]b");
}

TEST_F(Completions, LogprobsHoldOneEntryForEachToken) {
  start();
  const json choice = complete({{"prompt", "IDS[72,105]"}, {"logprobs", 1}, {"echo", true}})["choices"][0];
  const json& logprobs = choice["logprobs"];
  const size_t count = logprobs["tokens"].size();
  EXPECT_EQ(logprobs["token_logprobs"].size(), count);
  EXPECT_EQ(logprobs["top_logprobs"].size(), count);
  EXPECT_EQ(logprobs["text_offset"].size(), count);
  EXPECT_EQ(logprobs["token_logprobs"][0], nullptr);
  EXPECT_EQ(logprobs["tokens"][count - 3], "H");
  EXPECT_EQ(logprobs["tokens"][count - 2], "i");
  EXPECT_EQ(logprobs["text_offset"][count - 3], 11);
  EXPECT_EQ(logprobs["token_logprobs"][count - 2], -0.5);
}

TEST_F(Completions, case_14_16_EmptyAndForeignPromptsAreRefusedAndTheServerGoesOn) {
  start();
  for (const char* prompt : {R"("")", R"([""])", "[]", "[[]]", "[200000]", "[-1]", "[2147483648]", "[1.5]", "[true]"}) {
    const HttpReply reply = post_text("/v1/completions", std::string(R"({"prompt":)") + prompt + "}");
    EXPECT_EQ(reply.status, 400) << prompt << reply.body;
    EXPECT_EQ(json::parse(reply.body)["error"]["param"], "prompt") << prompt;
  }
  EXPECT_EQ(complete({{"prompt", "SAY[x]"}})["choices"][0]["text"], "x");
}

TEST_F(Completions, case_13_TooLongARequestNamesTheNumbers) {
  start();
  const HttpReply reply =
      post("/v1/completions", {{"prompt", json::array({1, 2, 3, 4, 5, 6, 7, 8})}, {"max_tokens", 1020}});
  EXPECT_EQ(reply.status, 400);
  const json error = json::parse(reply.body)["error"];
  EXPECT_THAT(error["message"].get<std::string>(),
              testing::AllOf(HasSubstr("1024"), HasSubstr("8"), HasSubstr("1020")));
  EXPECT_EQ(error["type"], "BadRequestError");
  EXPECT_EQ(error["code"], 400);
}

TEST_F(Completions, case_23_WrongTypesAreRefusedByName) {
  start();
  const std::pair<const char*, const char*> wrong[] = {{"logit_bias", R"({"a":1})"},
                                                       {"temperature", R"("0.7")"},
                                                       {"max_tokens", R"("5")"},
                                                       {"stream", R"("yes")"},
                                                       {"n", "1.5"},
                                                       {"logit_bias", R"({"999999":1})"}};
  for (const auto& [key, value] : wrong) {
    const HttpReply reply = post_text("/v1/completions", fmt::format(R"({{"prompt":"a","{}":{}}})", key, value));
    EXPECT_EQ(reply.status, 400) << key;
    EXPECT_EQ(json::parse(reply.body)["error"]["param"], key);
  }
}

TEST_F(Completions, case_07_24_HostileJsonIsRefused) {
  start();
  EXPECT_EQ(post_text("/v1/completions", R"({"prompt":"\ud800"})").status, 400);
  EXPECT_EQ(post_text("/v1/completions", "{\"prompt\":\"\xE2\x82\"}").status, 400);
  EXPECT_EQ(
      post_text("/v1/completions", R"({"prompt":"a","x":)" + std::string(10000, '[') + std::string(10000, ']') + "}")
          .status,
      400);
  EXPECT_EQ(post_text("/v1/completions", R"({"prompt":"SAY[a]","x":")" + std::string(1 << 20, 'y') + "\"}").status,
            200);
  EXPECT_EQ(post_text("/v1/completions", "not json").status, 400);
  const HttpReply echoed = post_text("/v1/completions", "{\"prompt\":\"a\",\"kv_policy\":\"\\u0000\\u001b\"}");
  EXPECT_EQ(echoed.status, 400);
  EXPECT_FALSE(json::parse(echoed.body, nullptr, false).is_discarded());
}

TEST_F(Completions, case_05_AnUnfinishedCharacterIsReplacedAtTheEnd) {
  start();
  const json body = {{"prompt", "IDS[226,130]"}, {"max_tokens", 2}};
  EXPECT_EQ(complete(body)["choices"][0]["text"], "\uFFFD");
  json streamed = body;
  streamed["stream"] = true;
  const HttpReply reply = post("/v1/completions", streamed);
  std::string text;
  for (const std::string& event : reply.events) {
    if (event != "[DONE]") text += json::parse(event)["choices"][0]["text"];
  }
  EXPECT_EQ(text, "\uFFFD");
}

}  // namespace
}  // namespace zipage
