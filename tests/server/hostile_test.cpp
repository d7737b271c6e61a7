// What a client may send to do harm: it is told so, and no other client notices.
#include <limits>

#include "server/server_test.h"

namespace zipage {
namespace {

using ::testing::HasSubstr;

class Hostile : public ServerTest {
 protected:
  ~Hostile() override {
    brake.release();
    stop();
  }
  void expect_refused(const std::string& path, const std::string& body, const std::string& param) {
    const HttpReply reply = post_text(path, body);
    EXPECT_EQ(reply.status, 400) << path << ' ' << body << '\n' << reply.body;
    const json error = json::parse(reply.body, nullptr, false)["error"];
    EXPECT_EQ(error["param"], param.empty() ? json() : json(param)) << path << ' ' << body << '\n' << reply.body;
    EXPECT_FALSE(error["message"].get<std::string>().empty());
  }
  Brake brake;
};

const char* const kCompletions = "/v1/completions";
const char* const kChat = "/v1/chat/completions";
const char* const kResponses = "/v1/responses";

TEST_F(Hostile, EveryFaultIsNamedByItsField) {
  start();
  const std::vector<std::array<std::string, 3>> cases = {
      {kCompletions, "", ""},
      {kCompletions, "null", ""},
      {kCompletions, "[]", ""},
      {kCompletions, R"({"prompt":"a","temperature":NaN})", ""},
      {kCompletions, R"({"prompt":"a","temperature":1e999})", ""},
      {kCompletions, R"({"prompt":"a","temperature":true})", "temperature"},
      {kCompletions, R"({"prompt":"a","temperature":-0.001})", "temperature"},
      {kCompletions, R"({"prompt":"a","top_p":0})", "top_p"},
      {kCompletions, R"({"prompt":"a","top_k":-2})", "top_k"},
      {kCompletions, R"({"prompt":"a","min_p":1.01})", "min_p"},
      {kCompletions, R"({"prompt":"a","repetition_penalty":0})", "repetition_penalty"},
      {kCompletions, R"({"prompt":"a","presence_penalty":-2.1})", "presence_penalty"},
      {kCompletions, R"({"prompt":"a","max_tokens":0})", "max_tokens"},
      {kCompletions, R"({"prompt":"a","max_tokens":99999999999999999999})", "max_tokens"},
      {kCompletions, R"({"prompt":"a","max_completion_tokens":-1})", "max_completion_tokens"},
      {kCompletions, R"({"prompt":"a","min_tokens":17})", "min_tokens"},
      {kCompletions, R"({"prompt":"a","n":2147483647})", "n"},
      {kCompletions, R"({"prompt":"a","n":0})", "n"},
      {kCompletions, R"({"prompt":"a","best_of":2})", "best_of"},
      {kCompletions, R"({"prompt":"a","seed":9223372036854775808})", "seed"},
      {kCompletions, R"({"prompt":"a","logprobs":21})", "logprobs"},
      {kCompletions, R"({"prompt":"a","logprobs":-1})", "logprobs"},
      {kCompletions, R"({"prompt":"a","stop":[""]})", "stop"},
      {kCompletions, R"({"prompt":"a","stop":[1]})", "stop"},
      {kCompletions, R"({"prompt":"a","stop":{"a":"b"}})", "stop"},
      {kCompletions, R"({"prompt":[1,2,"a"]})", "prompt"},
      {kCompletions, R"({"prompt":[["a"]]})", "prompt"},
      {kCompletions, R"({"prompt":{"a":1}})", "prompt"},
      {kCompletions, R"({"prompt":["a",null]})", "prompt"},
      {kCompletions, R"({"prompt":"a","model":5})", "model"},
      {kCompletions, R"({"prompt":"a","bad_words":[""]})", "bad_words"},
      {kCompletions, R"({"prompt":"a","vllm_xargs":[]})", "vllm_xargs"},
      {kCompletions, R"({"prompt":"a","kv_budget":-1})", "kv_budget"},
      {kCompletions, R"({"prompt":"a","kv_policy":"best"})", "kv_policy"},
      {kCompletions, R"({"prompt":"a","thinking_token_budget":-1})", "thinking_token_budget"},
      {kChat, R"({"messages":"hi"})", "messages"},
      {kChat, R"({"messages":[{"role":"user","content":5}]})", "messages"},
      {kChat, R"({"messages":[{"role":"user","content":{"a":1}}]})", "messages"},
      {kChat, R"({"messages":[{"role":"user","content":[{"type":"image_url"}]}]})", "messages"},
      {kChat, R"({"messages":[{"role":"","content":"x"}]})", "messages"},
      {kChat, R"({"messages":[{"role":7,"content":"x"}]})", "messages"},
      {kChat, R"({"messages":[{"role":"assistant","tool_calls":5}]})", "messages"},
      {kChat, R"({"messages":[{"role":"assistant","tool_calls":[5]}]})", "messages"},
      {kChat, R"({"messages":[{"role":"user","content":"x"}],"top_logprobs":2})", "top_logprobs"},
      {kChat, R"({"messages":[{"role":"user","content":"x"}],"logprobs":5})", "logprobs"},
      {kChat, R"({"messages":[{"role":"user","content":"x"}],"chat_template_kwargs":[]})", "chat_template_kwargs"},
      {kChat, R"({"messages":[{"role":"user","content":"x"}],"response_format":{"type":"xml"}})", "response_format"},
      {kChat, R"({"messages":[{"role":"user","content":"x"}],"structured_outputs":{}})", "structured_outputs"},
      {kResponses, R"({"input":"x","text":5})", "text"},
      {kResponses, R"({"input":"x","reasoning":"high"})", "reasoning"},
      {kResponses, R"({"input":"x","metadata":[]})", "metadata"},
      {kResponses, R"({"input":"x","truncation":"middle"})", "truncation"},
      {"/tokenize", R"({"prompt":["a","b"]})", "prompt"},
      {"/tokenize", R"({})", "prompt"},
      {"/detokenize", R"({"tokens":[-1]})", "tokens"},
      {"/abort_requests", R"({"request_ids":5})", "request_ids"},
  };
  for (const auto& [path, body, param] : cases) expect_refused(path, body, param);
  EXPECT_EQ(complete({{"prompt", "SAY[x]"}})["choices"][0]["text"], "x");
  EXPECT_TRUE(engine_is_empty());
}

TEST_F(Hostile, ATemplateInARequestIsAProgramThatIsNotRun) {
  start();
  for (const char* endless : {"{% for i in range(1000000000) %}a{% endfor %}",
                              "{% macro a() %}{{ a() }}{% endmacro %}{{ a() }}", "{{ 'a' * 1000000000 }}"}) {
    const json body = {{"messages", user("x")}, {"chat_template", endless}};
    expect_refused(kChat, body.dump(), "chat_template");
    expect_refused("/tokenize", body.dump(), "chat_template");
    expect_refused(kResponses, json{{"input", "x"}, {"chat_template", endless}}.dump(), "chat_template");
  }
}

TEST_F(Hostile, FormsThatNoAnswerCanHaveAreRefusedBeforeAnythingRuns) {
  start();
  const json endless = {{"type", "json_schema"}, {"json_schema", {{"name", "x"}, {"schema", {{"$ref", "#"}}}}}};
  expect_refused(kChat, json{{"messages", user("x")}, {"response_format", endless}}.dump(), "response_format");
  expect_refused(kCompletions, R"({"prompt":"x","structured_outputs":{"grammar":"root ::= root"}})",
                 "structured_outputs");
  EXPECT_EQ(llm->engine().stats().steps, 0);
}

TEST_F(Hostile, SeedsAtTheEndOfTheNumbersAreSeeds) {
  start();
  for (const int64_t seed : {std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max()}) {
    EXPECT_EQ(complete({{"prompt", "SAY[x]"}, {"seed", seed}, {"n", 3}})["choices"].size(), 3U);
  }
}

TEST_F(Hostile, OfTwoMembersWithOneNameTheLastCounts) {
  start();
  EXPECT_THAT(post_text(kCompletions, R"({"prompt":"SAY[a]","prompt":"SAY[b]"})").body, HasSubstr(R"("text":"b")"));
}

TEST_F(Hostile, ConnectionsBeyondTheLimitAreClosedAndThoseWithinItServed) {
  http.max_connections = 2;
  start();
  HttpClient one = client(), two = client();
  EXPECT_EQ(one.get("/health").status, 200);
  EXPECT_EQ(two.get("/health").status, 200);
  EXPECT_TRUE(client().closed_by_server());
  EXPECT_EQ(one.get("/health").status, 200);
  two.close();
  EXPECT_TRUE(eventually([&] { return server->num_connections() == 1; }));
  EXPECT_EQ(get("/health").status, 200);
}

TEST_F(Hostile, AThousandIdleConnectionsCostOthersNothing) {
  start();
  std::vector<HttpClient> idle;
  for (int i = 0; i < 1000; ++i) {
    idle.push_back(client());
    if (i % 2 == 0) idle.back().send("POST /v1/completions HTTP/1.1\r\nContent-Le");
  }
  EXPECT_TRUE(eventually([&] { return server->num_connections() == 1000; }));
  EXPECT_EQ(complete({{"prompt", "SAY[x]"}})["choices"][0]["text"], "x");
}

TEST_F(Hostile, SeveralStreamedSamplesWithUsageKeepTheirOrder) {
  start();
  const json body = {
      {"messages", user("SAY[abc]")}, {"n", 3}, {"stream", true}, {"stream_options", {{"include_usage", true}}}};
  const HttpReply reply = post(kChat, body);
  std::vector<std::string> texts(3);
  int finished = 0;
  for (size_t i = 0; i + 2 < reply.events.size(); ++i) {
    const json choice = json::parse(reply.events[i])["choices"][0];
    texts[choice["index"]] += choice["delta"].value("content", "");
    finished += choice["finish_reason"].is_null() ? 0 : 1;
  }
  EXPECT_EQ(texts, (std::vector<std::string>(3, "abc")));
  EXPECT_EQ(finished, 3);
  EXPECT_EQ(json::parse(reply.events[reply.events.size() - 2])["usage"]["completion_tokens"], 12);
}

TEST_F(Hostile, PriorityDecidesWhoWaits) {
  model.config.max_num_seqs = 1;
  model.config.scheduling_policy = SchedulingPolicy::kPriority;
  model.before_token = [this] { brake.pass(); };
  start();
  brake.hold();
  HttpClient running = client(), late = client(), urgent = client();
  running.send(HttpClient::post_text(kCompletions, R"({"prompt":"LOOP[x]","max_tokens":3,"priority":-9})"));
  brake.wait_until_reached();
  late.send(HttpClient::post_text(kCompletions, R"({"prompt":"LOOP[x]","max_tokens":900,"priority":5})"));
  EXPECT_TRUE(eventually([&] { return serving->num_generations() == 2; }));
  urgent.send(HttpClient::post_text(kCompletions, R"({"prompt":"LOOP[x]","max_tokens":3,"priority":0})"));
  EXPECT_TRUE(eventually([&] { return serving->num_generations() == 3; }));
  brake.release();
  EXPECT_EQ(urgent.read_reply().status, 200);
  EXPECT_LT(llm->engine().stats().generation_tokens, 900) << "the one that came first was served first";
  EXPECT_EQ(late.read_reply().status, 200);
}

}  // namespace
}  // namespace zipage
