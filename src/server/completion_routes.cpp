// /v1/completions and /v1/chat/completions: a body becomes a Generation, its deltas an answer.
#include <fmt/format.h>

#include <ctime>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "server/answer_format.h"
#include "server/generation.h"
#include "server/router.h"
#include "server/serving.h"
#include "server/tool_answers.h"
#include "text/json_fields.h"

namespace zipage {
namespace {

using nlohmann::json;

// A stream whose client has more than this to take gets one chunk for many tokens.
constexpr size_t kMergeBacklog = 32 * 1024;
constexpr size_t kUsualEvent = 512;
constexpr int kMaxChoices = 4096;

// Keeps deltas until the end.
class WholeAnswer {
 public:
  static void start(const ExchangePtr& exchange, const std::shared_ptr<Generation>& generation, AnswerFormat format,
                    HttpHeaders headers) {
    const auto answer = std::make_shared<WholeAnswer>(exchange, generation, std::move(format), std::move(headers));
    Generation::Sink sink;
    sink.delta = [answer](ChoiceDelta&& delta) {
      ChoiceDelta& choice = answer->choices_[static_cast<size_t>(delta.index)];
      choice.index = delta.index;
      choice.merge(std::move(delta));
    };
    sink.end = [answer](const Status& status) { answer->end(status); };
    const Status started = generation->start(executor_of(exchange), std::move(sink));
    if (!started.ok()) exchange->send(error_response(started));
  }

  WholeAnswer(ExchangePtr exchange, const std::shared_ptr<Generation>& generation, AnswerFormat format,
              HttpHeaders headers)
      : exchange_(std::move(exchange)),
        format_(std::move(format)),
        headers_(std::move(headers)),
        choices_(static_cast<size_t>(generation->num_choices())) {}

 private:
  void end(const Status& status) {
    HttpResponse response = status.ok() ? text_response(200, "application/json", format_.whole(std::move(choices_)))
                                        : error_response(status);
    response.headers.insert(response.headers.end(), headers_.begin(), headers_.end());
    exchange_->send(std::move(response));
  }

  ExchangePtr exchange_;
  AnswerFormat format_;
  HttpHeaders headers_;
  std::vector<ChoiceDelta> choices_;
};

// Server-sent events. While the client is slow deltas are merged, so that it costs no more than its text.
class StreamedAnswer {
 public:
  static void start(const ExchangePtr& exchange, const std::shared_ptr<Generation>& generation, AnswerFormat format,
                    HttpHeaders headers) {
    const auto answer = std::make_shared<StreamedAnswer>(exchange, generation, std::move(format));
    Generation::Sink sink;
    sink.delta = [answer](ChoiceDelta&& delta) { answer->take(std::move(delta)); };
    sink.end = [answer](const Status& status) { answer->end(status); };
    const Status started = generation->start(executor_of(exchange), std::move(sink));
    if (!started.ok()) return exchange->send(error_response(started));
    HttpResponse head;
    head.content_type = "text/event-stream; charset=utf-8";
    head.headers = std::move(headers);
    head.headers.emplace_back("Cache-Control", "no-cache");
    head.headers.emplace_back("X-Accel-Buffering", "no");
    exchange->on_drained([answer = std::weak_ptr(answer)] {
      if (const auto alive = answer.lock()) alive->let_go();
    });
    exchange->open(std::move(head));
  }

  StreamedAnswer(ExchangePtr exchange, std::shared_ptr<Generation> generation, AnswerFormat format)
      : exchange_(std::move(exchange)),
        generation_(std::move(generation)),
        format_(std::move(format)),
        held_(static_cast<size_t>(generation_->num_choices())) {}

 private:
  void write(std::string_view data) {
    std::string event = "data: ";
    exchange_->write(event.append(data).append("\n\n"));
  }

  void write(const ChoiceDelta& delta) {
    if (!format_.shows(delta)) return;
    std::string event;
    event.reserve(kUsualEvent);
    event = "data: ";
    format_.append_chunk(event, delta);
    exchange_->write(event.append("\n\n"));
  }

  void take(ChoiceDelta&& delta) {
    if (!std::exchange(opened_, true)) {
      for (const std::string& chunk : format_.opening()) write(chunk);
    }
    if (exchange_->backlog() <= kMergeBacklog && num_held_ == 0) return write(delta);
    std::optional<ChoiceDelta>& held = held_[static_cast<size_t>(delta.index)];
    if (held) return held->merge(std::move(delta));
    held = std::move(delta);
    ++num_held_;
  }

  void let_go() {
    if (num_held_ == 0) return;
    num_held_ = 0;
    for (std::optional<ChoiceDelta>& held : held_) {
      if (held) write(*std::exchange(held, std::nullopt));
    }
  }

  void end(const Status& status) {
    let_go();
    if (!status.ok()) {
      write(error_json(http_status(status), status.message(), status.param()));
    } else if (generation_->parsed().include_usage) {
      write(format_.usage_chunk());
    }
    exchange_->write("data: [DONE]\n\n");
    exchange_->close();
  }

  ExchangePtr exchange_;
  std::shared_ptr<Generation> generation_;
  AnswerFormat format_;
  std::vector<std::optional<ChoiceDelta>> held_;
  int num_held_ = 0;
  bool opened_ = false;
};

void start_answer(const ExchangePtr& exchange, const std::shared_ptr<Generation>& generation, AnswerFormat format,
                  HttpHeaders headers) {
  if (exchange->gone()) return;
  exchange->on_end([generation](EndReason reason) {
    if (reason == EndReason::kClientGone) return generation->end(std::nullopt);
    generation->end(Status(StatusCode::kUnavailable, "the server is shutting down"));
  });
  const bool stream = generation->parsed().stream;
  stream ? StreamedAnswer::start(exchange, generation, std::move(format), std::move(headers))
         : WholeAnswer::start(exchange, generation, std::move(format), std::move(headers));
}

// What the answer needs of the body beyond the request itself.
Result<AnswerOptions> answer_options(const Serving& serving, const json& body, bool chat, const ParsedRequest& parsed) {
  AnswerOptions options;
  options.chat = chat;
  options.role = serving.options().response_role;
  options.return_tokens_as_token_ids = serving.options().return_tokens_as_token_ids;
  JsonFields fields(body);
  fields.read("return_tokens_as_token_ids", options.return_tokens_as_token_ids);
  fields.read("include_reasoning", options.include_reasoning);
  // Fields that would change the answer and that nobody here acts on.
  bool beam_search = false;
  std::string suffix;
  fields.read("use_beam_search", beam_search);
  fields.read("suffix", suffix);
  std::optional<int> best_of;
  fields.read("best_of", best_of, 1, std::numeric_limits<int>::max());
  if (best_of.value_or(parsed.n) != parsed.n) fields.fail("best_of", "best_of is not offered");
  if (beam_search) fields.fail("use_beam_search", "beam search is not offered");
  if (!suffix.empty()) fields.fail("suffix", "suffix is not offered");
  if (!parsed.stream && fields.find("stream_options") != nullptr) {
    fields.fail("stream_options", "stream_options needs stream to be true");
  }
  if (parsed.stream && parsed.requests.front().request.sampling.prompt_logprobs) {
    fields.fail("prompt_logprobs", "prompt_logprobs is not part of a stream; a completion's echo with logprobs is");
  }
  ZIPAGE_RETURN_IF_ERROR(fields.status());
  if (!chat) return options;
  const TextRequest& request = parsed.requests.front();
  const auto last = json::parse(request.messages.back().json);
  if (!request.add_generation_prompt || request.continue_final_message) options.role = last["role"];
  const auto content = last.find("content");
  if (parsed.echo && content != last.end() && content->is_string() && last["role"] == options.role) {
    options.echoed_message = *content;
  }
  return options;
}

Status handle(Serving& serving, bool chat, const ExchangePtr& exchange) {
  const HttpRequest& request = exchange->request();
  ZIPAGE_RETURN_IF_ERROR(serving.available());
  const std::string text = exchange->take_body();
  ZIPAGE_ASSIGN_OR_RETURN(const json body, parse_json_object(text));
  const RequestKind kind = chat ? RequestKind::kChat : RequestKind::kCompletion;
  ZIPAGE_ASSIGN_OR_RETURN(ParsedRequest parsed, parse_request(body, kind, serving.request_context(kind), text));
  ZIPAGE_RETURN_IF_ERROR(serving.admits(parsed));
  if (static_cast<int64_t>(parsed.n) * static_cast<int64_t>(parsed.requests.size()) > kMaxChoices) {
    return invalid_argument(fmt::format("{} prompts and n {} make more than {} outputs", parsed.requests.size(),
                                        parsed.n, kMaxChoices))
        .with_param("n");
  }
  ZIPAGE_ASSIGN_OR_RETURN(AnswerOptions options, answer_options(serving, body, chat, parsed));
  parsed.include_usage |= serving.options().force_include_usage;

  const std::string_view given = request.header("x-request-id");
  const std::string base = !given.empty() ? std::string(given) : !parsed.id.empty() ? parsed.id : random_id("");
  options.id = fmt::format("{}-{}", chat ? "chatcmpl" : "cmpl", base);
  options.model = parsed.model.empty() ? serving.model_names().front() : parsed.model;
  options.created = std::time(nullptr);
  HttpHeaders headers;
  if (serving.options().request_id_headers) headers.emplace_back("X-Request-Id", base);

  Generation::Options split;
  split.chat = chat;
  split.split_reasoning = chat && serving.reasoning().has_value();
  if (chat) use_tools(serving, parsed, split);
  prepare_generation(serving, exchange, std::move(parsed), options.id, std::move(split),
                     [exchange, options, headers, &serving](const std::shared_ptr<Generation>& generation) {
                       AnswerFormat format(options, *generation, serving.llm()->tokenizer());
                       start_answer(exchange, generation, std::move(format), headers);
                     });
  return {};
}

Handler handler(Serving& serving, bool chat) {
  return [&serving, chat](const ExchangePtr& exchange) {
    const Status status = handle(serving, chat, exchange);
    if (!status.ok()) respond(exchange, error_response(status));
  };
}

}  // namespace

void add_completion_routes(Router& router, Serving& serving) {
  router.add("POST", "/v1/completions", RunsOn::kWorker, handler(serving, false));
  router.add("POST", "/v1/chat/completions", RunsOn::kWorker, handler(serving, true));
}

}  // namespace zipage
