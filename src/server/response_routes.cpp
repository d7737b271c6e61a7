// /v1/responses: a body becomes a chat, its deltas the items and events of a response.
#include <fmt/format.h>

#include <ctime>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "server/generation.h"
#include "server/response_events.h"
#include "server/response_request.h"
#include "server/router.h"
#include "server/serving.h"
#include "server/tool_answers.h"
#include "text/json_fields.h"

namespace zipage {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr size_t kMergeBacklog = 32 * 1024;

// Everything of the response that is known before the model has said a word.
ordered_json response_object(const json& body, const std::string& id, const std::string& model,
                             const ParsedRequest& parsed) {
  const auto echoed = [&](const char* key, ordered_json otherwise) {
    return body.contains(key) && !body[key].is_null() ? ordered_json(body[key]) : std::move(otherwise);
  };
  const SamplingParams& sampling = parsed.requests.front().request.sampling;
  ordered_json response{
      {"id", id}, {"object", "response"}, {"created_at", std::time(nullptr)}, {"status", "in_progress"}};
  response["background"] = false;
  response["error"] = nullptr;
  response["incomplete_details"] = nullptr;
  response["instructions"] = echoed("instructions", nullptr);
  response["max_output_tokens"] = echoed("max_output_tokens", nullptr);
  response["max_tool_calls"] = nullptr;
  response["metadata"] = echoed("metadata", ordered_json::object());
  response["model"] = model;
  response["output"] = ordered_json::array();
  response["parallel_tool_calls"] = parsed.tool_use.several;
  response["previous_response_id"] = nullptr;
  response["prompt"] = nullptr;
  response["reasoning"] = echoed("reasoning", ordered_json{{"effort", nullptr}, {"summary", nullptr}});
  response["service_tier"] = "default";
  response["store"] = false;
  response["temperature"] = sampling.temperature;
  response["text"] = echoed("text", ordered_json{{"format", {{"type", "text"}}}});
  response["tool_choice"] = echoed("tool_choice", "auto");
  response["tools"] = echoed("tools", ordered_json::array());
  response["top_logprobs"] = echoed("top_logprobs", 0);
  response["top_p"] = sampling.top_p;
  response["truncation"] = echoed("truncation", "disabled");
  response["usage"] = nullptr;
  response["user"] = echoed("user", nullptr);
  return response;
}

// One response, whole or as a stream. While the client is slow deltas are merged.
class ResponseAnswer {
 public:
  ResponseAnswer(ExchangePtr exchange, std::shared_ptr<Generation> generation, ordered_json response,
                 const Tokenizer& tokenizer)
      : exchange_(std::move(exchange)),
        generation_(std::move(generation)),
        streamed_(generation_->parsed().stream),
        events_(
            std::move(response), [](std::string_view prefix) { return random_id(prefix); }, tokenizer,
            streamed_ ? [this](std::string_view type, const std::string& data) { write(type, data); }
                      : ResponseEvents::Sink()) {}

  static void start(const std::shared_ptr<ResponseAnswer>& answer) {
    ResponseAnswer& self = *answer;
    if (self.exchange_->gone()) return;
    self.exchange_->on_end([generation = self.generation_](EndReason reason) {
      if (reason == EndReason::kClientGone) return generation->end(std::nullopt);
      generation->end(Status(StatusCode::kUnavailable, "the server is shutting down"));
    });
    Generation::Sink sink;
    sink.delta = [answer](ChoiceDelta&& delta) { answer->take(std::move(delta)); };
    sink.end = [answer](const Status& status) { answer->end(status); };
    const Status started = self.generation_->start(executor_of(self.exchange_), std::move(sink));
    if (!started.ok()) return self.exchange_->send(error_response(started));
    if (!self.streamed_) return;
    HttpResponse head;
    head.content_type = "text/event-stream; charset=utf-8";
    head.headers = {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}};
    self.exchange_->on_drained([weak = std::weak_ptr(answer)] {
      if (const auto alive = weak.lock()) alive->let_go();
    });
    self.exchange_->open(std::move(head));
    self.events_.begin();
  }

 private:
  void write(std::string_view type, const std::string& data) {
    event_.assign("event: ").append(type).append("\ndata: ").append(data).append("\n\n");
    exchange_->write(event_);
  }

  void take(ChoiceDelta&& delta) {
    if (!held_ && (!streamed_ || exchange_->backlog() <= kMergeBacklog)) return events_.add(delta);
    held_ ? held_->merge(std::move(delta)) : void(held_ = std::move(delta));
  }

  void let_go() {
    if (held_) events_.add(*std::exchange(held_, std::nullopt));
  }

  void end(const Status& status) {
    let_go();
    if (!streamed_) {
      if (!status.ok()) return exchange_->send(error_response(status));
      events_.end(generation_->usage());
      return exchange_->send(text_response(200, "application/json",
                                           events_.response().dump(-1, ' ', false, json::error_handler_t::replace)));
    }
    status.ok() ? events_.end(generation_->usage()) : events_.fail(status);
    exchange_->close();
  }

  ExchangePtr exchange_;
  std::shared_ptr<Generation> generation_;
  bool streamed_;
  ResponseEvents events_;
  std::optional<ChoiceDelta> held_;
  std::string event_;
};

Status handle(Serving& serving, const ExchangePtr& exchange) {
  const HttpRequest& request = exchange->request();
  ZIPAGE_RETURN_IF_ERROR(serving.available());
  const std::string text = exchange->take_body();
  ZIPAGE_ASSIGN_OR_RETURN(const json body, parse_json_object(text));
  ZIPAGE_ASSIGN_OR_RETURN(const ResponseChat chat, response_chat(body, text));
  ZIPAGE_ASSIGN_OR_RETURN(const json chat_body, parse_json_object(chat.body));
  ZIPAGE_ASSIGN_OR_RETURN(ParsedRequest parsed, parse_request(chat_body, RequestKind::kChat,
                                                              serving.request_context(RequestKind::kChat), chat.body));
  ZIPAGE_RETURN_IF_ERROR(serving.admits(parsed));
  const std::string model = parsed.model.empty() ? serving.model_names().front() : parsed.model;
  const std::string_view given = request.header("x-request-id");
  const std::string id = given.empty() ? random_id("resp_") : fmt::format("resp_{}", given);

  Generation::Options options;
  options.chat = true;
  options.split_reasoning = serving.reasoning().has_value();
  ordered_json response = response_object(body, id, model, parsed);
  use_tools(serving, parsed, options);
  prepare_generation(
      serving, exchange, std::move(parsed), id, std::move(options),
      [exchange, response = std::move(response), &serving](const std::shared_ptr<Generation>& generation) {
        const Tokenizer& tokenizer = serving.llm()->tokenizer();
        ResponseAnswer::start(std::make_shared<ResponseAnswer>(exchange, generation, response, tokenizer));
      });
  return {};
}

}  // namespace

void add_response_routes(Router& router, Serving& serving) {
  router.add("POST", "/v1/responses", RunsOn::kWorker, [&serving](const ExchangePtr& exchange) {
    const Status status = handle(serving, exchange);
    if (!status.ok()) respond(exchange, error_response(status));
  });
}

}  // namespace zipage
