// Health, models, tokens: the endpoints that make the engine compute nothing.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "server/generation.h"
#include "server/metrics.h"
#include "server/router.h"
#include "server/serving.h"
#include "text/json_fields.h"
#include "text/tokenizer.h"

namespace zipage {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

HttpResponse json_response(const ordered_json& body) {
  return text_response(200, "application/json", body.dump(-1, ' ', false, ordered_json::error_handler_t::replace));
}

HttpResponse empty_response() {
  return text_response(200, "", "");
}

// A handler whose answer is known at once.
template <typename Make>
Handler at_once(Make make) {
  return [make](const ExchangePtr& exchange) { respond(exchange, make(exchange->request())); };
}

// The same, from a JSON body, with the model loaded.
template <typename Make>
Handler from_json(Serving& serving, Make make) {
  return at_once([&serving, make](const HttpRequest& request) {
    const auto answer = [&]() -> Result<HttpResponse> {
      ZIPAGE_RETURN_IF_ERROR(serving.available());
      ZIPAGE_ASSIGN_OR_RETURN(const json body, parse_json_object(request.body));
      JsonFields fields(body);
      std::string model;
      fields.read("model", model);
      ZIPAGE_RETURN_IF_ERROR(fields.status());
      ZIPAGE_RETURN_IF_ERROR(serving.check_model(model));
      return make(body);
    };
    Result<HttpResponse> response = answer();
    return response.ok() ? *std::move(response) : error_response(response.status());
  });
}

constexpr std::string_view kModels = "/v1/models";

ordered_json model_object(const Serving& serving, const std::string& name) {
  ordered_json model;
  model["id"] = name;
  model["object"] = "model";
  model["created"] = serving.created();
  model["owned_by"] = "zipage";
  model["root"] = serving.options().model_root;
  model["parent"] = nullptr;
  LLM* const llm = serving.llm();
  model["max_model_len"] = llm == nullptr ? ordered_json() : ordered_json(llm->engine().model().max_model_len);
  model["vocab_size"] = llm == nullptr ? ordered_json() : ordered_json(llm->engine().model().vocab_size);
  return model;
}

HttpResponse model(const Serving& serving, std::string_view path) {
  const std::string name = percent_decoded(path.substr(kModels.size() + 1));
  if (const Status status = serving.check_model(name); !status.ok()) return error_response(status);
  return json_response(model_object(serving, name));
}

HttpResponse models(const Serving& serving) {
  ordered_json list = ordered_json::array();
  for (const std::string& name : serving.model_names()) list.push_back(model_object(serving, name));
  ordered_json body;
  body["object"] = "list";
  body["data"] = std::move(list);
  return json_response(body);
}

Result<HttpResponse> tokenize(Serving& serving, const json& body) {
  const bool chat = body.contains("messages") && !body["messages"].is_null();
  const RequestKind kind = chat ? RequestKind::kChat : RequestKind::kCompletion;
  bool with_strings = false;
  JsonFields fields(body);
  fields.read("return_token_strs", with_strings);
  ZIPAGE_RETURN_IF_ERROR(fields.status());
  ZIPAGE_ASSIGN_OR_RETURN(const ParsedRequest parsed, parse_request(body, kind, serving.request_context(kind)));
  ZIPAGE_RETURN_IF_ERROR(serving.admits(parsed));
  if (parsed.requests.size() > 1) {
    return invalid_argument("prompt must be one prompt here, not a list of them").with_param("prompt");
  }
  LLM& llm = *serving.llm();
  ZIPAGE_ASSIGN_OR_RETURN(const std::vector<int32_t> ids, llm.tokenize(parsed.requests.front()));
  ordered_json answer;
  answer["count"] = ids.size();
  answer["max_model_len"] = llm.engine().model().max_model_len;
  answer["tokens"] = ids;
  answer["token_strs"] = nullptr;
  if (with_strings) {
    ordered_json& strings = answer["token_strs"] = ordered_json::array();
    for (const int32_t id : ids) strings.push_back(llm.tokenizer().token_text(id));
  }
  return json_response(answer);
}

Result<HttpResponse> detokenize(Serving& serving, const json& body) {
  LLM& llm = *serving.llm();
  std::vector<int32_t> ids;
  JsonFields fields(body);
  if (fields.find("tokens") == nullptr) return invalid_argument("tokens is missing").with_param("tokens");
  fields.read_token_ids("tokens", ids, llm.engine().model().vocab_size);
  ZIPAGE_RETURN_IF_ERROR(fields.status());
  ordered_json answer;
  answer["prompt"] = llm.detokenize(ids);
  return json_response(answer);
}

// Without ids: all of them. Each ends with the finish reason "abort".
Result<HttpResponse> abort_requests(Serving& serving, const json& body) {
  std::vector<std::string> ids;
  JsonFields fields(body);
  fields.read_strings("request_ids", ids);
  ZIPAGE_RETURN_IF_ERROR(fields.status());
  if (fields.find("request_ids") == nullptr) serving.abort_all();
  for (const std::string& id : ids) serving.abort(id);
  return empty_response();
}

}  // namespace

void add_basic_routes(Router& router, Serving& serving) {
  const auto get = [&](std::string_view path, auto make) { router.add("GET", path, RunsOn::kExchange, at_once(make)); };
  // Alive: the process answers and its engine has not stopped for good. Loading counts as alive.
  get("/health", [&serving](const HttpRequest&) {
    const bool stopped = serving.llm() != nullptr && !serving.available().ok();
    return stopped ? error_response(serving.available()) : empty_response();
  });
  get("/ready", [&serving](const HttpRequest&) {
    const Status status = serving.ready();
    return status.ok() ? empty_response() : error_response(status);
  });
  get("/ping", [](const HttpRequest&) { return empty_response(); });
  router.add("POST", "/ping", RunsOn::kExchange, at_once([](const HttpRequest&) { return empty_response(); }));
  get("/version", [&serving](const HttpRequest&) {
    return json_response(ordered_json{{"version", serving.options().version}});
  });
  get(kModels, [&serving](const HttpRequest&) { return models(serving); });
  get(std::string(kModels) + "/*", [&serving](const HttpRequest& request) { return model(serving, request.path); });
  get("/load", [&serving](const HttpRequest&) {
    return json_response(ordered_json{{"server_load", serving.num_generations()}});
  });
  get("/metrics", [&serving](const HttpRequest&) {
    LLM* const llm = serving.llm();
    std::string text;
    if (llm != nullptr) {
      const Engine& engine = llm->engine();
      text = serving.metrics().text(serving.model_names().front(), engine.stats(), engine.config());
    }
    return text_response(200, "text/plain; version=0.0.4; charset=utf-8", std::move(text));
  });
  router.add("POST", "/reset_prefix_cache", RunsOn::kExchange, at_once([&serving](const HttpRequest&) {
               if (const Status status = serving.available(); !status.ok()) return error_response(status);
               serving.llm()->engine().reset_prefix_cache();
               return empty_response();
             }));
  router.add("POST", "/abort_requests", RunsOn::kWorker,
             from_json(serving, [&serving](const json& body) { return abort_requests(serving, body); }));
  router.add("POST", "/tokenize", RunsOn::kWorker,
             from_json(serving, [&serving](const json& body) { return tokenize(serving, body); }));
  router.add("POST", "/detokenize", RunsOn::kWorker,
             from_json(serving, [&serving](const json& body) { return detokenize(serving, body); }));
}

}  // namespace zipage
