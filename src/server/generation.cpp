#include "server/generation.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/log.h"
#include "server/metrics.h"
#include "server/serving.h"
#include "text/tokenizer.h"

namespace zipage {
namespace {

template <typename T>
void append(std::vector<T>& to, std::vector<T>&& from) {
  to.insert(to.end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
}

}  // namespace

void ChoiceDelta::merge(ChoiceDelta&& later) {
  reasoning += later.reasoning;
  content += later.content;
  for (ToolCallDelta& call : later.tool_calls) {
    const bool same = !tool_calls.empty() && tool_calls.back().index == call.index && call.id.empty();
    if (same) {
      tool_calls.back().arguments += call.arguments;
    } else {
      tool_calls.push_back(std::move(call));
    }
  }
  append(token_ids, std::move(later.token_ids));
  append(logprobs, std::move(later.logprobs));
  append(prompt_logprobs, std::move(later.prompt_logprobs));
  finish_reason = later.finish_reason;
  stop_string = std::move(later.stop_string);
  stop_token_id = later.stop_token_id;
  num_output_tokens = later.num_output_tokens;
}

Generation::Generation(Serving& serving, ParsedRequest parsed, std::string id, Options options)
    : serving_(serving),
      llm_(*serving.llm()),
      parsed_(std::move(parsed)),
      id_(std::move(id)),
      options_(std::move(options)) {}

Generation::~Generation() = default;

Result<std::shared_ptr<Generation>> Generation::prepare(Serving& serving, ParsedRequest parsed, std::string id,
                                                        Options options) {
  const std::shared_ptr<Generation> generation(
      new Generation(serving, std::move(parsed), std::move(id), std::move(options)));
  ZIPAGE_RETURN_IF_ERROR(generation->prepare_prompts());
  return generation;
}

Status Generation::prepare_prompts() {
  requests_ = std::exchange(parsed_.requests, {});
  // All of them ask for the same structure.
  TextRequest& first = requests_.front();
  if (options_.split_reasoning) first.reasoning_parser = serving_.options().reasoning_parser;
  ZIPAGE_RETURN_IF_ERROR(llm_.compile(first));
  for (TextRequest& request : requests_) {
    request.reasoning_parser = first.reasoning_parser;
    request.grammar = first.grammar;
    Prompt& prompt = prompts_.emplace_back();
    if (parsed_.echo) prompt.text = request.prompt.value_or("");
    ZIPAGE_RETURN_IF_ERROR(truncate_prompt(llm_, parsed_, request));
    ZIPAGE_ASSIGN_OR_RETURN(prompt.token_ids, llm_.tokenize(request));
    const bool shows_ids = parsed_.echo && (!request.prompt || parsed_.truncate_prompt_tokens);
    if (shows_ids && !options_.chat) prompt.text = llm_.detokenize(prompt.token_ids, true);
    if (options_.split_reasoning) prompt.thought = prompt_thought(llm_.tokenizer(), prompt.token_ids);
    request.prompt.reset();
    request.messages.clear();
    request.tools.clear();
    request.prompt_token_ids = prompt.token_ids;
    SamplingParams& sampling = request.request.sampling;
    if (parsed_.echo && !options_.chat && sampling.logprobs && !sampling.prompt_logprobs) {
      sampling.prompt_logprobs = sampling.logprobs;
    }
    usage_.prompt_tokens += static_cast<int64_t>(prompt.token_ids.size());
  }
  choices_.resize(prompts_.size() * static_cast<size_t>(parsed_.n));
  return {};
}

Status Generation::start(TextExecutor executor, Sink sink) {
  executor_ = std::move(executor);
  sink_ = std::move(sink);
  num_unfinished_ = num_choices();
  serving_.enter(*this);
  for (int index = 0; index < num_choices(); ++index) {
    Choice& choice = choices_[static_cast<size_t>(index)];
    const int sample = index % parsed_.n;
    if (options_.split_reasoning && serving_.reasoning()) {
      choice.reasoning.emplace(*serving_.reasoning(), prompt_of(index).thought);
    }
    if (options_.tool_parser) choice.tools = options_.tool_parser();
    TextRequest& original = requests_[static_cast<size_t>(index / parsed_.n)];
    TextRequest request = sample + 1 < parsed_.n ? original : std::move(original);
    // Around the end of the numbers, as one sample after another: no sum of them overflows.
    if (auto& seed = request.request.sampling.seed) seed = static_cast<int64_t>(static_cast<uint64_t>(*seed) + sample);
    choice.engine_id = request.request.request_id = serving_.next_engine_id(id_);
    const auto submitted = llm_.submit(
        std::move(request),
        [self = shared_from_this(), index](TextOutput&& piece) { self->receive(index, std::move(piece)); }, executor_);
    if (!submitted.ok()) {
      choice.engine_id.clear();
      end(std::nullopt);
      return submitted.status();
    }
  }
  requests_ = {};
  if (llm_.engine().config().enable_log_requests) {
    log_info("{}: {} prompt tokens, {} outputs", id_, usage_.prompt_tokens, num_choices());
  }
  return {};
}

void Generation::receive(int index, TextOutput&& piece) {
  Choice& choice = choices_[static_cast<size_t>(index)];
  choice.finished |= piece.finished();
  if (ended_) return;
  count(choice, piece);
  if (piece.finish_reason == FinishReason::kError) {
    finish(piece.tokens.error);
    return;
  }
  ChoiceDelta delta;
  delta.index = index;
  split(choice, piece, delta);
  delta.token_ids = std::move(piece.tokens.new_token_ids);
  delta.logprobs = std::move(piece.tokens.logprobs);
  delta.prompt_logprobs = std::move(piece.tokens.prompt_logprobs);
  delta.finish_reason = piece.finish_reason;
  delta.stop_token_id = piece.tokens.stop_token_id;
  if (!delta.stop_token_id) delta.stop_string = std::move(piece.stop_reason);
  delta.num_output_tokens = choice.num_tokens;
  const bool last = delta.finished() && --num_unfinished_ == 0;
  sink_.delta(std::move(delta));
  if (last && !ended_) finish({});
}

void Generation::split(Choice& choice, TextOutput& piece, ChoiceDelta& delta) {
  std::string content;
  if (choice.reasoning) {
    const auto take = [&](ReasoningParser::Delta&& part) {
      delta.reasoning += part.reasoning;
      content += part.content;
    };
    const bool thought = choice.reasoning->thinking();
    const std::vector<int32_t>& ids = piece.tokens.new_token_ids;
    take(ids.size() == 1 ? choice.reasoning->push_token(ids.front(), piece.delta)
                         : choice.reasoning->push(piece.delta));
    if (thought) usage_.reasoning_tokens += static_cast<int64_t>(ids.size());
    if (piece.finished()) take(choice.reasoning->finish());
  } else {
    content = std::move(piece.delta);
  }
  if (choice.tools == nullptr) {
    delta.content = std::move(content);
    return;
  }
  const auto take = [&](ToolParser::Delta&& part) {
    delta.content += part.content;
    append(delta.tool_calls, std::move(part.calls));
  };
  if (!content.empty()) take(choice.tools->push(content));
  if (piece.finished()) take(choice.tools->finish());
}

void Generation::count(Choice& choice, const TextOutput& piece) {
  const RequestOutput& tokens = piece.tokens;
  const size_t num_new = tokens.new_token_ids.size();
  const Clock::time_point now = Clock::now();
  const auto seconds_since = [now](Clock::time_point then) {
    return std::chrono::duration<double>(now - then).count();
  };
  Metrics& metrics = serving_.metrics();
  if (num_new > 0) {
    choice.num_tokens == 0 ? metrics.first_token(seconds_since(arrived_))
                           : metrics.next_token(seconds_since(choice.last_token));
    choice.last_token = now;
  }
  choice.num_tokens += static_cast<int>(num_new);
  usage_.completion_tokens += static_cast<int64_t>(num_new);
  if (!piece.finished()) return;
  metrics.finished({.e2e_seconds = seconds_since(arrived_),
                    .queue_seconds = tokens.queue_seconds,
                    .prefill_seconds = tokens.prefill_seconds,
                    .decode_seconds = tokens.decode_seconds,
                    .prompt_tokens = tokens.num_prompt_tokens,
                    .output_tokens = choice.num_tokens});
  usage_.cached_tokens += tokens.num_cached_tokens;
  KvStats& sum = usage_.kv_stats;
  sum.resident_tokens += tokens.kv_stats.resident_tokens;
  sum.evicted_tokens += tokens.kv_stats.evicted_tokens;
  sum.compressions += tokens.kv_stats.compressions;
  sum.swaps += tokens.kv_stats.swaps;
  sum.preemptions += tokens.kv_stats.preemptions;
  sum.peak_blocks = std::max(sum.peak_blocks, tokens.kv_stats.peak_blocks);
}

void Generation::finish(const Status& status) {
  ended_ = true;
  if (llm_.engine().config().enable_log_requests) {
    log_info("{}: {} output tokens{}{}", id_, usage_.completion_tokens, status.ok() ? "" : ", ", status.message());
  }
  serving_.leave(*this);
  abort_choices();
  const Sink sink = std::exchange(sink_, {});
  sink.end(status);
}

void Generation::end(const std::optional<Status>& error) {
  if (ended_) return;
  if (error) return finish(*error);
  ended_ = true;
  serving_.leave(*this);
  abort_choices();
  sink_ = {};
}

void Generation::abort() {
  executor_([self = shared_from_this()] {
    if (!self->ended_) self->abort_choices();
  });
}

void Generation::abort_choices() {
  for (const Choice& choice : choices_) {
    if (!choice.finished && !choice.engine_id.empty()) llm_.abort(choice.engine_id);
  }
}

}  // namespace zipage
