#include "server/response_request.h"
#include "server/server_test.h"

namespace zipage {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class Responses : public ServerTest {
 protected:
  json respond_to(const json& body) {
    const HttpReply reply = post("/v1/responses", body);
    EXPECT_EQ(reply.status, 200) << reply.body;
    return json::parse(reply.body, nullptr, false);
  }
  std::vector<json> events_of(json body) {
    body["stream"] = true;
    const HttpReply reply = post("/v1/responses", body);
    EXPECT_EQ(reply.status, 200) << reply.body;
    EXPECT_TRUE(reply.complete);
    std::vector<json> events;
    for (const std::string& event : reply.events) {
      // "event: TYPE", then "data: JSON"
      const size_t data = event.find("data: ");
      events.push_back(json::parse(data == std::string::npos ? event : event.substr(data + 6)));
      EXPECT_THAT(event, HasSubstr(events.back()["type"].get<std::string>()));
    }
    return events;
  }
  static json tools() { return json::parse(R"([{"type":"function","name":"f","parameters":{"type":"object"}}])"); }
};

std::string types_of(const std::vector<nlohmann::json>& events) {
  std::string types;
  for (const nlohmann::json& event : events) {
    const std::string type = event["type"].get<std::string>().substr(std::string("response.").size());
    // A run of deltas is one word.
    if (!types.ends_with(type + "\n")) types += type + "\n";
  }
  return types;
}

TEST_F(Responses, ThoughtAndAnswerAreItems) {
  start();
  const json response = respond_to({{"input", "SAY[<think>one</think>two]"}, {"metadata", {{"a", "b"}}}});
  EXPECT_THAT(response["id"].get<std::string>(), StartsWith("resp_"));
  EXPECT_EQ(response["object"], "response");
  EXPECT_EQ(response["status"], "completed");
  EXPECT_EQ(response["model"], "scripted");
  EXPECT_EQ(response["metadata"]["a"], "b");
  ASSERT_EQ(response["output"].size(), 2U);
  EXPECT_EQ(response["output"][0]["type"], "reasoning");
  EXPECT_EQ(response["output"][0]["content"][0]["text"], "one");
  EXPECT_EQ(response["output"][1]["type"], "message");
  EXPECT_EQ(response["output"][1]["content"][0]["type"], "output_text");
  EXPECT_EQ(response["output"][1]["content"][0]["text"], "two");
  const json& usage = response["usage"];
  EXPECT_EQ(usage["total_tokens"], usage["input_tokens"].get<int>() + usage["output_tokens"].get<int>());
  EXPECT_GT(usage["output_tokens_details"]["reasoning_tokens"], 0);
}

TEST_F(Responses, EventsComeInOpenAIsOrder) {
  start();
  const std::vector<json> events = events_of({{"input", "SAY[<think>one</think>two]"}});
  EXPECT_EQ(types_of(events),
            "created\nin_progress\n"
            "output_item.added\ncontent_part.added\nreasoning_text.delta\nreasoning_text.done\ncontent_part.done\n"
            "output_item.done\n"
            "output_item.added\ncontent_part.added\noutput_text.delta\noutput_text.done\ncontent_part.done\n"
            "output_item.done\n"
            "completed\n");
  std::string text;
  for (size_t i = 0; i < events.size(); ++i) {
    EXPECT_EQ(events[i]["sequence_number"], i);
    if (events[i]["type"] == "response.output_text.delta") {
      text += events[i]["delta"];
      EXPECT_EQ(events[i]["output_index"], 1);
    }
  }
  EXPECT_EQ(text, "two");
  EXPECT_EQ(events.back()["response"]["output"][1]["content"][0]["text"], "two");
  EXPECT_EQ(events[0]["response"]["status"], "in_progress");
}

TEST_F(Responses, CallsAreItemsWithTheirArguments) {
  start();
  const json body = {{"input", "SAY[<tool_call>{\"name\": \"f\", \"arguments\": {\"x\": 1}}</tool_call>]"},
                     {"tools", tools()}};
  const json response = respond_to(body);
  ASSERT_EQ(response["output"].size(), 1U);
  EXPECT_EQ(response["output"][0]["type"], "function_call");
  EXPECT_EQ(response["output"][0]["name"], "f");
  EXPECT_EQ(response["output"][0]["arguments"], "{\"x\": 1}");
  EXPECT_THAT(response["output"][0]["call_id"].get<std::string>(), StartsWith("call_"));
  EXPECT_EQ(types_of(events_of(body)),
            "created\nin_progress\noutput_item.added\nfunction_call_arguments.delta\nfunction_call_arguments.done\n"
            "output_item.done\ncompleted\n");
}

TEST_F(Responses, AnAnswerThatIsCutOffIsIncomplete) {
  start();
  const json response = respond_to({{"input", "SAY[a long answer]"}, {"max_output_tokens", 3}});
  EXPECT_EQ(response["status"], "incomplete");
  EXPECT_EQ(response["incomplete_details"]["reason"], "max_output_tokens");
  EXPECT_EQ(response["output"][0]["status"], "incomplete");
  EXPECT_EQ(events_of({{"input", "SAY[a long answer]"}, {"max_output_tokens", 3}}).back()["type"],
            "response.incomplete");
}

TEST_F(Responses, ItemsBecomeTheMessagesOfAChat) {
  const std::string text =
      R"({"instructions": "be short", "temperature": 0.5, "seed": 3, "reasoning": {"effort": "low"},
    "text": {"format": {"type": "json_schema", "name": "n", "schema": {"z": 1, "a": 2}}},
    "input": [{"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
      {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
      {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
      {"type": "function_call_output", "call_id": "c1", "output": "42"},
      {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "it is 42"}]},
      {"role": "developer", "content": "stop"}]})";
  const auto chat = response_chat(json::parse(text), text);
  ASSERT_TRUE(chat.ok()) << chat.status().message();
  const json body = json::parse(chat->body);
  EXPECT_EQ(body["messages"], json::parse(R"([{"role":"system","content":"be short"},{"role":"user","content":"hi"},
    {"role":"assistant","content":null,"reasoning_content":"hm","tool_calls":[{"id":"c1","type":"function","function":{"name":"f","arguments":"{}"}}]},
    {"role":"tool","tool_call_id":"c1","content":"42"},{"role":"assistant","content":"it is 42"},{"role":"system","content":"stop"}])"));
  EXPECT_EQ(body["temperature"], 0.5);
  EXPECT_EQ(body["seed"], 3);
  EXPECT_THAT(chat->body, HasSubstr(R"("schema": {"z": 1, "a": 2})"));
}

TEST_F(Responses, FaultsNameTheirField) {
  start();
  const std::vector<std::pair<json, std::string>> cases = {
      {json::object(), "input"},
      {{{"input", 5}}, "input"},
      {{{"input", json::array()}}, "messages"},
      {{{"input", {{{"type", "item_reference"}, {"id", "x"}}}}}, "input"},
      {{{"input", {{{"role", "user"}, {"content", {{{"type", "input_image"}}}}}}}}, "input"},
      {{{"input", "x"}, {"previous_response_id", "resp_1"}}, "previous_response_id"},
      {{{"input", "x"}, {"background", true}}, "background"},
      {{{"input", "x"}, {"max_output_tokens", 0}}, "max_output_tokens"},
      {{{"input", "x"}, {"temperature", -1}}, "temperature"},
      {{{"input", "x"}, {"tools", {{{"type", "web_search"}}}}}, "tools"},
      {{{"input", "x"}, {"text", {{"format", {{"type", "json_schema"}, {"schema", {{"$ref", "http://x"}}}}}}}},
       "response_format"},
  };
  for (const auto& [body, param] : cases) {
    const HttpReply reply = post("/v1/responses", body);
    EXPECT_EQ(reply.status, 400) << body;
    EXPECT_EQ(json::parse(reply.body)["error"]["param"], param) << reply.body;
  }
}

TEST_F(Responses, TheDescriptionHasEveryFieldThatIsChecked) {
  start();
  const json api = json::parse(get("/openapi.json").body);
  EXPECT_EQ(api["openapi"], "3.1.0");
  const json& chat = api["components"]["schemas"]["ChatCompletionRequest"]["properties"];
  for (const char* field :
       {"messages", "temperature", "top_k", "stop", "logit_bias", "response_format", "tools", "tool_choice",
        "kv_budget", "kv_policy", "thinking_token_budget", "structured_outputs", "stream_options"}) {
    EXPECT_TRUE(chat.contains(field)) << field;
  }
  EXPECT_EQ(chat["min_p"]["maximum"], 1);
  EXPECT_EQ(api["components"]["schemas"]["CompletionRequest"]["required"], json::array({"prompt"}));
  for (const char* path : {"/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/models", "/metrics"}) {
    EXPECT_TRUE(api["paths"].contains(path)) << path;
  }
  EXPECT_THAT(get("/docs").body, HasSubstr("openapi.json"));
}

}  // namespace
}  // namespace zipage
