#include "server/server_test.h"

namespace zipage {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

class ToolAnswers : public ServerTest {
 protected:
  static json tools() {
    return json::parse(R"([{"type":"function","function":{"name":"get_weather","parameters":{"type":"object",
      "properties":{"city":{"type":"string"}}}}}])");
  }
  const std::string kCall = R"(SAY[<tool_call>
{"name": "get_weather", "arguments": {"city": "Zürich"}}
</tool_call>])";
};

TEST_F(ToolAnswers, ACallIsNoContent) {
  start();
  const json choice =
      chat({{"messages", user("SAY[Wait. <tool_call>{\"name\": \"get_weather\", \"arguments\": {}}</tool_call>]")},
            {"tools", tools()}})["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  EXPECT_EQ(choice["message"]["content"], "Wait.");
  const json call = choice["message"]["tool_calls"][0];
  EXPECT_THAT(call["id"].get<std::string>(), StartsWith("call_"));
  EXPECT_EQ(call["type"], "function");
  EXPECT_EQ(call["function"], (json{{"name", "get_weather"}, {"arguments", "{}"}}));
}

TEST_F(ToolAnswers, AStreamCarriesTheNameOnceAndTheArgumentsInPieces) {
  start();
  const HttpReply reply =
      post("/v1/chat/completions", {{"messages", user(kCall)}, {"tools", tools()}, {"stream", true}});
  int names = 0;
  std::string arguments, reason;
  for (const std::string& event : reply.events) {
    if (event == "[DONE]") continue;
    const json choice = json::parse(event)["choices"][0];
    EXPECT_EQ(choice["delta"].value("content", ""), "") << event;
    for (const json& call : choice["delta"].value("tool_calls", json::array())) {
      EXPECT_EQ(call["index"], 0);
      names += call["function"].contains("name") ? 1 : 0;
      arguments += call["function"]["arguments"];
    }
    if (!choice["finish_reason"].is_null()) reason = choice["finish_reason"];
  }
  EXPECT_EQ(names, 1);
  EXPECT_EQ(arguments, R"({"city": "Zürich"})");
  EXPECT_EQ(reason, "tool_calls");
}

TEST_F(ToolAnswers, WithoutToolsOrWithNoneTheTextStaysText) {
  start();
  for (json fields : {json{{"tool_choice", "none"}, {"tools", tools()}}, json::object()}) {
    fields["messages"] = user(kCall);
    const json choice = chat(fields)["choices"][0];
    EXPECT_EQ(choice["finish_reason"], "stop");
    EXPECT_THAT(choice["message"]["content"].get<std::string>(), HasSubstr("<tool_call>"));
  }
}

TEST_F(ToolAnswers, TheParserIsTheServersToChoose) {
  serving_options.tool_call_parser = "llama3_json";
  start();
  const json choice = chat({{"messages", user(R"(SAY[{"name": "get_weather", "parameters": {"city": "x"}}])")},
                            {"tools", tools()}})["choices"][0];
  EXPECT_EQ(choice["message"]["tool_calls"][0]["function"]["arguments"], R"({"city": "x"})");
  EXPECT_EQ(choice["message"]["content"], nullptr);
}

TEST_F(ToolAnswers, case_29_ACallAndItsResultReachTheTemplate) {
  serving_options.trust_request_chat_template = true;
  start();
  const std::string source =
      "{% for m in messages %}{{ m.role }}:{% if m.tool_calls is defined %}{{ m.content is none }}"
      "{{ m.tool_calls[0].function.arguments.city }}{% else %}{{ m.content }}{% endif %};{% endfor %}";
  const json call = {{"id", "call_1"},
                     {"type", "function"},
                     {"function", {{"name", "get_weather"}, {"arguments", R"({"city": "Bern"})"}}}};
  json messages = user("q");
  messages.push_back({{"role", "assistant"}, {"content", nullptr}, {"tool_calls", {call}}});
  messages.push_back({{"role", "tool"}, {"tool_call_id", "call_1"}, {"content", "sunny"}});
  const HttpReply reply = post("/tokenize", {{"messages", messages}, {"chat_template", source}, {"tools", tools()}});
  ASSERT_EQ(reply.status, 200) << reply.body;
  const HttpReply text = post("/detokenize", {{"tokens", json::parse(reply.body)["tokens"]}});
  EXPECT_EQ(json::parse(text.body)["prompt"], "user:q;assistant:TrueBern;tool:sunny;");
}

TEST_F(ToolAnswers, FaultsNameTheirField) {
  start();
  const std::vector<std::pair<json, std::string>> cases = {
      {{{"tools", "x"}}, "tools"},
      {{{"tool_choice", "required"}}, "tool_choice"},
      {{{"tools", tools()}, {"tool_choice", {{"type", "function"}, {"function", {{"name", "other"}}}}}}, "tool_choice"},
      {{{"structured_outputs", {{"regex", "("}}}}, "structured_outputs"},
      {{{"response_format", {{"type", "json_schema"}, {"json_schema", {{"schema", {{"$ref", "http://x"}}}}}}}},
       "response_format"},
      {{{"tool_choice", "required"},
        {"tools", {{{"type", "function"}, {"function", {{"name", "f"}, {"parameters", {{"type", "nonsense"}}}}}}}}},
       "tools"},
  };
  for (auto [fields, param] : cases) {
    fields["messages"] = user("x");
    const HttpReply reply = post("/v1/chat/completions", fields);
    EXPECT_EQ(reply.status, 400) << fields;
    EXPECT_EQ(json::parse(reply.body)["error"]["param"], param) << reply.body;
  }
}

}  // namespace
}  // namespace zipage
