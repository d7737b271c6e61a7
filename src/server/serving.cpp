#include "server/serving.h"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <utility>

#include "server/generation.h"
#include "server/metrics.h"
#include "text/chat_template.h"

namespace zipage {

Serving::Serving(ServingOptions options) : options_(std::move(options)), created_(std::time(nullptr)) {}
Serving::~Serving() = default;

Status Serving::attach(LLM& llm) {
  const std::string source = llm.chat_template() == nullptr ? "" : llm.chat_template()->source();
  ZIPAGE_ASSIGN_OR_RETURN(reasoning_, reasoning_format(options_.reasoning_parser, llm.tokenizer(), source));
  ZIPAGE_ASSIGN_OR_RETURN(tools_, tool_format(options_.tool_call_parser, source));
  metrics_ = std::make_unique<Metrics>(llm.engine().model().max_model_len);
  llm_ = &llm;
  return {};
}

RequestContext Serving::request_context(RequestKind kind) const {
  RequestContext context;
  const LLM& llm = *llm_.load();
  context.defaults = llm.default_sampling();
  // OpenAI's default for completions; a chat may use the rest of the context.
  context.defaults.max_tokens = kind == RequestKind::kCompletion ? SamplingParams().max_tokens : 0;
  context.vocab_size = llm_.load()->engine().model().vocab_size;
  context.max_logprobs = llm_.load()->engine().config().max_logprobs;
  context.tokenizer = &llm.tokenizer();
  return context;
}

Status Serving::check_model(const std::string& name) const {
  const auto& names = options_.model_names;
  if (name.empty() || std::find(names.begin(), names.end(), name) != names.end()) return {};
  return Status(StatusCode::kNotFound, fmt::format("the model '{}' does not exist", name)).with_param("model");
}

Status Serving::admits(const ParsedRequest& parsed) const {
  if (!options_.trust_request_chat_template && !parsed.requests.front().chat_template.empty()) {
    return invalid_argument(
               "a chat template in a request is a program that this server would run: it is refused without "
               "--trust-request-chat-template")
        .with_param("chat_template");
  }
  return check_model(parsed.model);
}

Status Serving::available() const {
  if (llm_ == nullptr) return Status(StatusCode::kUnavailable, "the model is still being loaded");
  return llm_.load()->health();
}

Status Serving::ready() {
  ZIPAGE_RETURN_IF_ERROR(available());
  const EngineStats stats = llm_.load()->engine().stats();
  const auto now = std::chrono::steady_clock::now();
  const std::lock_guard lock(mutex_);
  // The engine's own counts are those of its last step, which may have been before a request came.
  const bool has_work = !generations_.empty();
  // The last step may lie long before the work that waits now.
  if (has_work && !had_work_) work_since_ = now;
  had_work_ = has_work;
  const auto still = now - std::max(stats.last_progress, work_since_);
  if (!has_work || still <= options_.stall_timeout) return {};
  return Status(StatusCode::kUnavailable,
                fmt::format("no step has progressed for {} s while {} requests are open",
                            std::chrono::duration_cast<std::chrono::seconds>(still).count(), generations_.size()));
}

void Serving::enter(Generation& generation) {
  const std::lock_guard lock(mutex_);
  generations_.emplace(generation.id(), generation.weak_from_this());
}

void Serving::leave(Generation& generation) {
  const std::lock_guard lock(mutex_);
  const auto [begin, end] = generations_.equal_range(generation.id());
  const auto found =
      std::find_if(begin, end, [&](const auto& entry) { return entry.second.lock().get() == &generation; });
  if (found != end) generations_.erase(found);
}

void Serving::abort(const std::string& id) {
  const std::lock_guard lock(mutex_);
  const auto [begin, end] = generations_.equal_range(id);
  for (auto each = begin; each != end; ++each) {
    if (const auto generation = each->second.lock()) generation->abort();
  }
}

void Serving::abort_all() {
  const std::lock_guard lock(mutex_);
  for (const auto& entry : generations_) {
    if (const auto generation = entry.second.lock()) generation->abort();
  }
}

int Serving::num_generations() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int>(generations_.size());
}

std::string Serving::next_engine_id(const std::string& id) {
  return fmt::format("{}-{}", id, next_serial_++);
}

void add_routes(Router& router, Serving& serving) {
  add_basic_routes(router, serving);
  add_completion_routes(router, serving);
  add_response_routes(router, serving);
  add_openapi_routes(router, serving);
  add_web_page(router);
}

}  // namespace zipage
