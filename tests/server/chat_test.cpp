#include "server/server_test.h"

namespace zipage {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

using Chat = ServerTest;

TEST_F(Chat, AnAnswerIsAMessageOfTheAssistant) {
  start();
  const json answer = chat({{"messages", user("SAY[hello]")}});
  EXPECT_THAT(answer["id"].get<std::string>(), StartsWith("chatcmpl-"));
  EXPECT_EQ(answer["object"], "chat.completion");
  const json& choice = answer["choices"][0];
  EXPECT_EQ(choice["message"]["role"], "assistant");
  EXPECT_EQ(choice["message"]["content"], "hello");
  EXPECT_EQ(choice["message"]["reasoning_content"], nullptr);
  EXPECT_EQ(choice["finish_reason"], "stop");
}

TEST_F(Chat, AStreamBeginsWithTheRoleAndEndsWithTheReason) {
  start();
  const HttpReply reply =
      post("/v1/chat/completions", {{"messages", user("IDS[72,105]")}, {"stream", true}, {"request_id", "r"}});
  ASSERT_EQ(reply.events.size(), 5U);
  const std::string head = R"({"id":"chatcmpl-r","object":"chat.completion.chunk","created":)" +
                           json::parse(reply.events[0])["created"].dump() + R"(,"model":"scripted","choices":[)";
  EXPECT_EQ(reply.events[0], head + R"({"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,)"
                                    R"("finish_reason":null}],"prompt_token_ids":null})");
  EXPECT_EQ(reply.events[1],
            head + R"({"index":0,"delta":{"content":"H"},"logprobs":null,"finish_reason":null,"token_ids":null}]})");
  EXPECT_EQ(reply.events[3], head + R"({"index":0,"delta":{"content":""},"logprobs":null,"finish_reason":"stop",)"
                                    R"("stop_reason":null,"token_ids":null}]})");
  EXPECT_EQ(reply.events[4], "[DONE]");
}

TEST_F(Chat, ThoughtsAreReasoningContent) {
  start();
  const json message = chat({{"messages", user("SAY[<think>one</think>two]")}})["choices"][0]["message"];
  EXPECT_EQ(message["reasoning_content"], "one");
  EXPECT_EQ(message["content"], "two");
  const HttpReply reply =
      post("/v1/chat/completions", {{"messages", user("SAY[<think>one</think>two]")}, {"stream", true}});
  std::string reasoning, content;
  for (const std::string& event : reply.events) {
    if (event == "[DONE]") continue;
    const json delta = json::parse(event)["choices"][0]["delta"];
    reasoning += delta.value("reasoning_content", "");
    content += delta.value("content", "");
  }
  EXPECT_EQ(reasoning, "one");
  EXPECT_EQ(content, "two");
}

TEST_F(Chat, ToolCallsAreFoundInTheAnswer) {
  start();
  const json function = {{"name", "add"}, {"parameters", {{"type", "object"}}}};
  const std::string call = R"(<tool_call>{"name": "add", "arguments": {"a": 1, "b": "x"}}</tool_call>)";
  json body = {{"messages", user("SAY[so: " + call + "]")},
               {"tools", json::array({{{"type", "function"}, {"function", function}}})}};
  const json choice = chat(body)["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  ASSERT_EQ(choice["message"]["tool_calls"].size(), 1U);
  const json& made = choice["message"]["tool_calls"][0];
  EXPECT_EQ(made["type"], "function");
  EXPECT_EQ(made["function"]["name"], "add");
  EXPECT_EQ(json::parse(made["function"]["arguments"].get<std::string>()), (json{{"a", 1}, {"b", "x"}}));
  EXPECT_THAT(made["id"].get<std::string>(), StartsWith("call_"));

  body["stream"] = true;
  const HttpReply reply = post("/v1/chat/completions", body);
  std::string name, arguments, finish;
  for (const std::string& event : reply.events) {
    if (event == "[DONE]") continue;
    const json streamed = json::parse(event)["choices"][0];
    if (streamed["finish_reason"].is_string()) finish = streamed["finish_reason"];
    for (const json& part : streamed["delta"].value("tool_calls", json::array())) {
      EXPECT_EQ(part["index"], 0);
      name += part["function"].value("name", "");
      arguments += part["function"].value("arguments", "");
    }
  }
  EXPECT_EQ(name, "add");
  EXPECT_EQ(json::parse(arguments, nullptr, false), (json{{"a", 1}, {"b", "x"}}));
  EXPECT_EQ(finish, "tool_calls");

  body["tool_choice"] = "none";
  body["stream"] = false;
  EXPECT_THAT(chat(body)["choices"][0]["message"]["content"].get<std::string>(), HasSubstr("<tool_call>"));
}

TEST_F(Chat, case_31_AnUnfinishedThoughtIsReasoning) {
  start();
  const json choice = chat({{"messages", user("SAY[<think>on and on]")}, {"max_tokens", 6}})["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "length");
  EXPECT_EQ(choice["message"]["content"], nullptr);
  EXPECT_NE(choice["message"]["reasoning_content"], "");
}

TEST_F(Chat, case_28_TheTemplatesComplaintIsTheClientsFault) {
  serving_options.trust_request_chat_template = true;
  start();
  const HttpReply reply =
      post("/v1/chat/completions",
           {{"messages", user("a")}, {"chat_template", "{{ raise_exception('roles must alternate') }}"}});
  EXPECT_EQ(reply.status, 400);
  EXPECT_THAT(json::parse(reply.body)["error"]["message"].get<std::string>(), HasSubstr("roles must alternate"));
}

TEST_F(Chat, LogprobsCarryTokensAndBytes_case_02) {
  start();
  const json body = {{"messages", user("IDS[226,130,172]")}, {"logprobs", true}, {"top_logprobs", 1}};
  const json choice = chat(body)["choices"][0];
  EXPECT_EQ(choice["message"]["content"], "€");
  std::string joined;
  for (const json& entry : choice["logprobs"]["content"]) {
    if (entry["token"] == "<|im_end|>") continue;
    for (const json& byte : entry["bytes"]) joined += static_cast<char>(byte.get<int>());
  }
  EXPECT_EQ(joined, "€");
}

}  // namespace
}  // namespace zipage
