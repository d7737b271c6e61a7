#include "server/openapi.h"

#include <nlohmann/json.hpp>

#include "server/router.h"
#include "server/serving.h"

namespace zipage {
namespace {

using Json = nlohmann::ordered_json;

Json reference(const char* schema) {
  return {{"$ref", std::string("#/components/schemas/") + schema}};
}

Json content(const char* type, Json schema) {
  return {{type, {{"schema", std::move(schema)}}}};
}

// Every operation may fail, in one shape.
Json operation(const char* summary, Json answers) {
  Json result{{"summary", summary}, {"responses", std::move(answers)}};
  for (const char* status : {"400", "401", "404", "413", "429", "500", "503"}) {
    result["responses"][status] = {{"description", "an error"},
                                   {"content", content("application/json", reference("Error"))}};
  }
  return result;
}

Json answer(const char* description, Json body) {
  Json result{{"description", description}};
  if (!body.is_null()) result["content"] = std::move(body);
  return {{"200", std::move(result)}};
}

Json with_body(Json result, Json schema) {
  result["requestBody"] = {{"required", true}, {"content", content("application/json", std::move(schema))}};
  return result;
}

Json object_schema(const FieldTable& fields) {
  Json schema{{"type", "object"}};
  for (const auto& [name, text] : fields) schema["properties"][name] = Json::parse(text);
  return schema;
}

Json completion_request(const RequestContext& context) {
  Json schema = object_schema(request_fields(RequestKind::kCompletion, context));
  const Json ids = Json::parse(R"({"type":"array","minItems":1,"items":{"type":"integer","minimum":0,"maximum":)" +
                               std::to_string(context.vocab_size - 1) + "}}");
  const Json text{{"type", "string"}, {"minLength", 1}};
  schema["properties"]["prompt"]["anyOf"] = {
      text, ids, {{"type", "array"}, {"minItems", 1}, {"items", {{"anyOf", {text, ids}}}}}};
  schema["required"] = {"prompt"};
  return schema;
}

Json chat_request(const RequestContext& context) {
  Json schema = object_schema(request_fields(RequestKind::kChat, context));
  schema["properties"]["messages"] = Json::parse(
      R"({"type":"array","minItems":1,"items":{"type":"object","required":["role","content"],"properties":{)"
      R"("role":{"enum":["system","developer","user","assistant","tool"]},"content":{"anyOf":[{"type":["string","null"]},)"
      R"({"type":"array","items":{"type":"object","required":["type","text"],"properties":{"type":{"const":"text"},)"
      R"("text":{"type":"string"}}}}]}}}})");
  schema["required"] = {"messages"};
  return schema;
}

// What is said otherwise than in a chat.
Json response_request(const RequestContext& context) {
  Json schema = object_schema(request_fields(RequestKind::kChat, context));
  Json& properties = schema["properties"];
  for (const char* chats_own : {"n", "max_tokens", "max_completion_tokens", "response_format", "logprobs",
                                "stream_options", "truncate_prompt_tokens", "echo"}) {
    properties.erase(chats_own);
  }
  properties["input"] = Json::parse(
      R"({"anyOf":[{"type":"string","minLength":1},{"type":"array","minItems":1,"items":{"type":"object"}}]})");
  properties["instructions"] = Json::parse(R"({"type":["string","null"]})");
  properties["max_output_tokens"] = Json::parse(R"({"type":["integer","null"],"minimum":1,"maximum":2147483647})");
  properties["text"] = Json::parse(R"({"type":["object","null"],"properties":{"format":{"type":"object"}}})");
  properties["reasoning"] = Json::parse(R"({"type":["object","null"]})");
  properties["truncation"] = Json::parse(R"({"enum":["auto","disabled",null]})");
  properties["tools"] = Json::parse(
      R"({"type":["array","null"],"items":{"type":"object","required":["type","name"],"properties":{"type":)"
      R"({"const":"function"},"name":{"type":"string","minLength":1,"maxLength":256},"parameters":{"type":["object","null"]}}}})");
  properties["tool_choice"] = Json::parse(R"({"anyOf":[{"enum":["none","auto","required",null]},{"type":"object"}]})");
  schema["required"] = {"input"};
  return schema;
}

Json schemas(const RequestContext& completion, const RequestContext& chat) {
  Json all;
  all["CompletionRequest"] = completion_request(completion);
  all["ChatCompletionRequest"] = chat_request(chat);
  all["ResponseRequest"] = response_request(chat);
  all["DetokenizeRequest"] = Json::parse(
      R"({"type":"object","required":["tokens"],"properties":{"model":{"type":["string","null"]},"tokens":{"type":"array",)"
      R"("items":{"type":"integer","minimum":0,"maximum":)" +
      std::to_string(completion.vocab_size - 1) + "}}}}");
  all["AbortRequest"] = Json::parse(
      R"({"type":"object","properties":{"request_ids":{"type":["array","null"],"items":{"type":"string","minLength":1}}}})");
  all["Usage"] = Json::parse(
      R"({"type":"object","required":["prompt_tokens","total_tokens","completion_tokens"],"properties":{)"
      R"("prompt_tokens":{"type":"integer"},"total_tokens":{"type":"integer"},"completion_tokens":{"type":"integer"}}})");
  all["Completion"] = Json::parse(
      R"({"type":"object","required":["id","object","created","model","choices","usage"],"properties":{"object":)"
      R"({"const":"text_completion"},"choices":{"type":"array","items":{"type":"object","required":["index","text",)"
      R"("finish_reason"]}},"usage":{"$ref":"#/components/schemas/Usage"}}})");
  all["ChatCompletion"] = Json::parse(
      R"({"type":"object","required":["id","object","created","model","choices","usage"],"properties":{"object":)"
      R"({"const":"chat.completion"},"choices":{"type":"array","items":{"type":"object","required":["index","message",)"
      R"("finish_reason"]}},"usage":{"$ref":"#/components/schemas/Usage"}}})");
  all["Response"] = Json::parse(
      R"({"type":"object","required":["id","object","created_at","status","model","output","usage"],"properties":{)"
      R"("object":{"const":"response"},"output":{"type":"array","items":{"type":"object","required":["type"]}}}})");
  all["Error"] = Json::parse(
      R"({"type":"object","required":["error"],"properties":{"error":{"type":"object","required":["message","type","code"],)"
      R"("properties":{"message":{"type":"string"},"type":{"type":"string"},"param":{"type":["string","null"]}}}}})");
  return all;
}

Json generating(const char* summary, const char* request, const char* whole) {
  Json body = content("application/json", reference(whole));
  body.update(content("text/event-stream", Json::object()));
  return {
      {"post", with_body(operation(summary, answer("whole, or with \"stream\" as server-sent events", std::move(body))),
                         reference(request))}};
}

Json plain(const char* method, const char* summary, Json body = nullptr) {
  return {{method, operation(summary, answer("done", std::move(body)))}};
}

}  // namespace

std::string openapi_json(const RequestContext& completion, const RequestContext& chat, const std::string& version) {
  const Json object = content("application/json", {{"type", "object"}});
  Json paths;
  paths["/v1/completions"] = generating("Continues a prompt", "CompletionRequest", "Completion");
  paths["/v1/chat/completions"] = generating("Answers a chat", "ChatCompletionRequest", "ChatCompletion");
  paths["/v1/responses"] = generating("Answers a list of items", "ResponseRequest", "Response");
  paths["/v1/models"] = plain("get", "The served names", object);
  paths["/v1/models/{name}"] = plain("get", "One of them", object);
  paths["/v1/models/{name}"]["get"]["parameters"] =
      Json::parse(R"([{"name":"name","in":"path","required":true,"schema":{"type":"string","minLength":1}}])");
  paths["/tokenize"] = {
      {"post", with_body(operation("Token ids of a prompt or a chat", answer("ids", object)),
                         {{"anyOf", {reference("CompletionRequest"), reference("ChatCompletionRequest")}}})}};
  paths["/detokenize"] = {
      {"post", with_body(operation("Text of token ids", answer("text", object)), reference("DetokenizeRequest"))}};
  paths["/health"] = plain("get", "Alive");
  paths["/ready"] = plain("get", "Loaded, and steps progress");
  paths["/ping"] = plain("get", "Alive");
  paths["/version"] = plain("get", "The version", object);
  paths["/load"] = plain("get", "How many requests run", object);
  paths["/metrics"] = plain("get", "Prometheus metrics", content("text/plain", {{"type", "string"}}));
  paths["/reset_prefix_cache"] = plain("post", "Forgets all cached prefixes");
  paths["/abort_requests"] = {
      {"post",
       with_body(operation("Ends requests by their ids, or all", answer("done", nullptr)), reference("AbortRequest"))}};
  Json document{{"openapi", "3.1.0"}, {"info", {{"title", "zipage"}, {"version", version}}}};
  document["paths"] = std::move(paths);
  document["components"] = {{"schemas", schemas(completion, chat)},
                            {"securitySchemes", {{"key", {{"type", "http"}, {"scheme", "bearer"}}}}}};
  return document.dump(-1, ' ', false, Json::error_handler_t::replace);
}

const char* const kDocsPage = R"html(<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>zipage: the API</title>
<style>
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color-scheme: light dark }
summary { cursor: pointer; padding: .3rem 0 } code { font-size: .9em }
table { border-collapse: collapse; width: 100% } td, th { text-align: left; padding: .2rem .6rem; border-top: 1px solid #8884; vertical-align: top }
.method { display: inline-block; width: 4rem; font-weight: 600 }
</style>
<h1>zipage: the API</h1><p>Made from <a href="openapi.json">openapi.json</a>.</p><main></main>
<script type="module">
const api = await (await fetch("openapi.json")).json();
const main = document.querySelector("main");
const el = (tag, text, parent) => { const e = document.createElement(tag); e.textContent = text; parent.append(e); return e };
const resolve = s => s.$ref ? api.components.schemas[s.$ref.split("/").pop()] : s;
for (const [path, methods] of Object.entries(api.paths)) for (const [method, operation] of Object.entries(methods)) {
  const box = el("details", "", main), head = el("summary", "", box);
  el("span", method.toUpperCase(), head).className = "method";
  el("code", path, head); head.append(" " + operation.summary);
  const body = operation.requestBody?.content["application/json"].schema;
  for (const schema of body ? (body.anyOf ?? [body]).map(resolve) : []) {
    const table = el("table", "", box);
    for (const [name, field] of Object.entries(schema.properties)) {
      const row = el("tr", "", table);
      el("code", name + (schema.required?.includes(name) ? " *" : ""), el("td", "", row));
      el("code", JSON.stringify(field), el("td", "", row));
    }
  }
}
</script></html>
)html";

void add_openapi_routes(Router& router, Serving& serving) {
  router.add("GET", "/openapi.json", RunsOn::kWorker, [&serving](const ExchangePtr& exchange) {
    const Status status = serving.available();
    if (!status.ok()) return respond(exchange, error_response(status));
    respond(exchange,
            text_response(200, "application/json",
                          openapi_json(serving.request_context(RequestKind::kCompletion),
                                       serving.request_context(RequestKind::kChat), serving.options().version)));
  });
  router.add("GET", "/docs", RunsOn::kExchange, [](const ExchangePtr& exchange) {
    exchange->send(text_response(200, "text/html; charset=utf-8", kDocsPage));
  });
}

}  // namespace zipage
