#include "zipage/llm.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>

#include "base/log.h"
#include "base/thread_role.h"
#include "grammar/grammar.h"
#include "text/detokenizer.h"
#include "text/grammar_vocabulary.h"
#include "text/reasoning_parser.h"
#include "text/text_model.h"

namespace zipage {
namespace {

bool contains(const std::vector<int32_t>& ids, int32_t id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

// One request's text. Lives in its executor once it is submitted.
class TextStream {
 public:
  TextStream(std::string id, const Tokenizer& tokenizer, TextOptions options, std::vector<int32_t> eos_ids,
             std::vector<int32_t> stop_ids, TextSink sink, TextExecutor executor)
      : id_(std::move(id)),
        detokenizer_(tokenizer, options.skip_special_tokens),
        stops_(std::move(options.stop), options.include_stop_str_in_output),
        include_stop_(options.include_stop_str_in_output),
        eos_ids_(std::move(eos_ids)),
        stop_ids_(std::move(stop_ids)),
        sink_(std::move(sink)),
        executor_(std::move(executor)) {}

  const std::string& id() const { return id_; }

  // All that follows happens in tasks of this. They hold the stream.
  void execute(std::function<void()> task) const { executor_ ? executor_(std::move(task)) : task(); }

  // Returns whether a stop string has just been found, so that the engine should go on no further.
  bool push(RequestOutput&& tokens) {
    if (stops_.matched()) {
      finish_stopped(std::move(tokens));
      return false;
    }
    TextOutput out;
    out.request_id = tokens.request_id;
    const int before = tokens.num_output_tokens - static_cast<int>(tokens.new_token_ids.size());
    size_t used = 0;
    while (used < tokens.new_token_ids.size() && !stops_.matched()) {
      const bool last = tokens.finished() && used + 1 == tokens.new_token_ids.size();
      const int32_t id = tokens.new_token_ids[used++];
      if (last && tokens.finish_reason == FinishReason::kStop && stops_at(id) && !include_stop_) continue;
      out.delta += stops_.push(detokenizer_.push(id));
    }
    if (tokens.finished() && !stops_.matched()) {
      out.delta += stops_.push(detokenizer_.finish());
      out.delta += stops_.finish();
    }
    num_tokens_ = before + static_cast<int>(used);
    if (stops_.matched()) {
      // Tokens behind the stop string are none of the answer's.
      tokens.new_token_ids.resize(used);
      if (tokens.logprobs.size() > used) tokens.logprobs.resize(used);
      tokens.num_output_tokens = num_tokens_;
      if (tokens.finished() && tokens.finish_reason != FinishReason::kError) {
        tokens.finish_reason = FinishReason::kStop;
        out.stop_reason = stops_.stop();
      }
    } else if (tokens.stop_token_id && contains(stop_ids_, *tokens.stop_token_id)) {
      out.stop_reason = std::to_string(*tokens.stop_token_id);
    } else {
      tokens.stop_token_id.reset();
    }
    finished_ = tokens.finished();
    out.finish_reason = tokens.finish_reason;
    out.tokens = std::move(tokens);
    const bool stop = stops_.matched() && !finished_;
    sink_(std::move(out));
    return stop;
  }

  // The engine is gone.
  void end(FinishReason reason, const Status& error) {
    if (finished_) return;
    TextOutput out;
    out.request_id = out.tokens.request_id = id_;
    out.finish_reason = out.tokens.finish_reason = stops_.matched() ? FinishReason::kStop : reason;
    out.stop_reason = stops_.stop();
    if (out.finish_reason == FinishReason::kError) out.tokens.error = error;
    out.tokens.num_output_tokens = num_tokens_;
    finished_ = true;
    sink_(std::move(out));
  }

  bool finished() const { return finished_; }

 private:
  bool stops_at(int32_t id) const { return contains(eos_ids_, id) || contains(stop_ids_, id); }

  // What the engine still says about a request whose stop string was found: its statistics.
  void finish_stopped(RequestOutput&& tokens) {
    if (!tokens.finished()) return;
    TextOutput out;
    out.request_id = tokens.request_id;
    tokens.new_token_ids.clear();
    tokens.logprobs.clear();
    tokens.num_output_tokens = num_tokens_;
    tokens.stop_token_id.reset();
    tokens.finish_reason = out.finish_reason = FinishReason::kStop;
    tokens.error = {};
    out.stop_reason = stops_.stop();
    out.tokens = std::move(tokens);
    finished_ = true;
    sink_(std::move(out));
  }

  const std::string id_;
  Detokenizer detokenizer_;
  StopChecker stops_;
  bool include_stop_;
  std::vector<int32_t> eos_ids_, stop_ids_;
  TextSink sink_;
  TextExecutor executor_;  // null: the engine's thread
  int num_tokens_ = 0;
  bool finished_ = false;
};

class TextEngine final : public LLM {
 public:
  TextEngine(std::unique_ptr<Engine> engine, TextModel model)
      : engine_(std::move(engine)),
        model_(std::move(model)),
        grammars_([this] { return grammar_vocabulary(*model_.tokenizer, engine_->model().vocab_size, eos_ids_); }) {
    eos_ids_ = engine_->model().eos_token_ids;
    for (const int32_t id : model_.eos_token_ids) {
      if (!contains(eos_ids_, id)) extra_eos_ids_.push_back(id);
    }
    eos_ids_.insert(eos_ids_.end(), extra_eos_ids_.begin(), extra_eos_ids_.end());
    thread_ = std::thread([this] {
      name_thread("zipage-engine");
      run();
    });
  }

  ~TextEngine() override {
    stop_ = true;
    engine_->wake();
    thread_.join();
    end_all(FinishReason::kAbort, Status(StatusCode::kCancelled, "the engine is shutting down"));
    engine_.reset();
  }

  Result<std::string> submit(TextRequest request, TextSink sink, TextExecutor executor) override {
    for (const std::string& stop : request.text.stop) {
      if (stop.empty()) return invalid_argument("stop strings must not be empty").with_param("stop");
    }
    ZIPAGE_ASSIGN_OR_RETURN(request.request.prompt_token_ids, tokenize(request));
    Request& inner = request.request;
    complete(inner);
    if (request.structured_output) ZIPAGE_RETURN_IF_ERROR(constrain(request));
    std::vector<int32_t> stop_ids = inner.sampling.stop_token_ids;
    if (!inner.sampling.ignore_eos) {
      for (const int32_t id : extra_eos_ids_) {
        if (!contains(stop_ids, id)) inner.sampling.stop_token_ids.push_back(id);
      }
    }
    if (inner.request_id.empty()) inner.request_id = fmt::format("req-{}", next_id_++);
    const std::string id = inner.request_id;
    const auto stream = std::make_shared<TextStream>(id, *model_.tokenizer, std::move(request.text),
                                                     inner.sampling.ignore_eos ? std::vector<int32_t>() : eos_ids_,
                                                     std::move(stop_ids), std::move(sink), std::move(executor));
    inner.sink = [this, stream](RequestOutput&& output) {
      stream->execute([this, stream, output = std::move(output)]() mutable {
        if (stream->push(std::move(output))) engine_->abort(stream->id());
        if (stream->finished()) forget(stream->id());
      });
    };
    {
      const std::lock_guard lock(mutex_);
      if (!health_.ok()) return health_;
      if (!live_.emplace(id, stream).second) {
        return invalid_argument(fmt::format("a request with the id '{}' is running", id)).with_param("request_id");
      }
    }
    auto submitted = engine_->submit(std::move(inner));
    if (!submitted.ok()) forget(id);
    return submitted;
  }

  Status compile(TextRequest& request) override {
    if (!request.structured_output || request.grammar != nullptr) return {};
    auto grammar = grammars_.compile(*request.structured_output);
    if (!grammar.ok()) return grammar.status().with_param(request.structured_field);
    if (!allows_a_token(**grammar)) {
      return invalid_argument(fmt::format("{}: no answer can have this form", request.structured_field))
          .with_param(request.structured_field);
    }
    request.grammar = *std::move(grammar);
    return {};
  }

  void abort(const std::string& request_id) override { engine_->abort(request_id); }

  Result<std::vector<int32_t>> tokenize(const TextRequest& request) const override {
    if (int(request.prompt.has_value()) + int(request.prompt_token_ids.has_value()) + int(!request.messages.empty()) !=
        1) {
      return invalid_argument("a request has exactly one of prompt, prompt_token_ids and messages")
          .with_param("prompt");
    }
    if (request.prompt_token_ids) return *request.prompt_token_ids;
    if (request.prompt) return model_.tokenizer->encode(*request.prompt, request.add_special_tokens);
    return tokenize_chat(request);
  }

  std::string detokenize(std::span<const int32_t> ids, bool skip_special_tokens) const override {
    return model_.tokenizer->decode(ids, skip_special_tokens);
  }

  Status health() const override {
    const std::lock_guard lock(mutex_);
    return health_;
  }

  Engine& engine() override { return *engine_; }
  const Tokenizer& tokenizer() const override { return *model_.tokenizer; }
  const ChatTemplate* chat_template() const override { return model_.chat_template.get(); }
  SamplingParams default_sampling() const override { return model_.default_sampling; }

 private:
  void run() {
    Status error;
    try {
      engine_->run(stop_);
      return;
    } catch (const std::exception& failure) {
      error = Status(StatusCode::kInternal, fmt::format("the engine has stopped: {}", failure.what()));
    }
    log_error("{}", error.message());
    {
      const std::lock_guard lock(mutex_);
      health_ = Status(StatusCode::kUnavailable, error.message());
    }
    end_all(FinishReason::kError, error);
  }

  void end_all(FinishReason reason, const Status& error) {
    std::map<std::string, std::shared_ptr<TextStream>> live;
    {
      const std::lock_guard lock(mutex_);
      live.swap(live_);
    }
    for (const auto& entry : live) {
      const auto stream = entry.second;
      stream->execute([stream, reason, error] { stream->end(reason, error); });
    }
  }

  void forget(const std::string& id) {
    const std::lock_guard lock(mutex_);
    live_.erase(id);
  }

  // What follows from the prompt's length and end.
  void complete(Request& request) const {
    SamplingParams& sampling = request.sampling;
    if (sampling.max_tokens == 0) {
      const auto prompt = static_cast<int>(std::min<size_t>(request.prompt_token_ids.size(), INT32_MAX));
      sampling.max_tokens = std::max(1, engine_->model().max_model_len - prompt);
    }
    if (!sampling.thinking_token_budget || !request.end_thinking_token_ids.empty()) return;
    const ReasoningFormat format;
    request.begin_thinking_token_ids = model_.tokenizer->encode(format.begin, false);
    request.end_thinking_token_ids = model_.tokenizer->encode(format.end, false);
    request.starts_thinking = prompt_thought(*model_.tokenizer, request.prompt_token_ids) == PromptThought::kOpened;
  }

  // Not so for "root ::= root", or a schema that refers to nothing but itself.
  bool allows_a_token(const CompiledGrammar& grammar) const {
    const int vocab = engine_->model().vocab_size;
    std::vector<uint32_t> mask(static_cast<size_t>(vocab + 31) / 32, 0);
    if (!grammar.constraint({}, {})->fill_mask(mask.data(), vocab)) return true;
    return std::ranges::any_of(mask, [](uint32_t bits) { return bits != 0; });
  }

  Status constrain(TextRequest& request) {
    ZIPAGE_RETURN_IF_ERROR(compile(request));
    const std::string_view source = model_.chat_template ? model_.chat_template->source() : std::string_view();
    ZIPAGE_ASSIGN_OR_RETURN(const auto format, reasoning_format(request.reasoning_parser, *model_.tokenizer, source));
    ThoughtGate gate;
    if (format) gate = thought_gate(*format, *model_.tokenizer, request.request.prompt_token_ids);
    std::vector<int32_t> stops;
    for (const int32_t id : request.request.sampling.stop_token_ids) {
      const AddedToken* added = model_.tokenizer->added_token(id);
      if (added != nullptr && added->special) stops.push_back(id);
    }
    request.request.constraint = request.grammar->constraint(std::move(gate), stops);
    return {};
  }

  Result<std::vector<int32_t>> tokenize_chat(const TextRequest& request) const {
    std::unique_ptr<ChatTemplate> own;
    const ChatTemplate* chat = model_.chat_template.get();
    if (!request.tools.empty() && model_.tool_template != nullptr) chat = model_.tool_template.get();
    if (!request.chat_template.empty()) {
      auto parsed = ChatTemplate::parse(request.chat_template, model_.bos_token, model_.eos_token);
      if (!parsed.ok()) return invalid_argument(parsed.status().message()).with_param("chat_template");
      own = std::move(parsed).value();
      chat = own.get();
    }
    if (chat == nullptr) {
      return invalid_argument("the model has no chat template: give one with --chat-template, or send a prompt")
          .with_param("messages");
    }
    ChatTemplateInputs inputs;
    inputs.messages = "[";
    for (const ChatMessage& message : request.messages) {
      if (inputs.messages.size() > 1) inputs.messages += ',';
      inputs.messages += message.json;
    }
    inputs.messages += ']';
    inputs.tools = request.tools;
    inputs.kwargs = request.chat_template_kwargs;
    inputs.add_generation_prompt = request.add_generation_prompt;
    inputs.continue_final_message = request.continue_final_message;
    ZIPAGE_ASSIGN_OR_RETURN(const auto spans, chat->render(inputs));
    return encode_prompt(*model_.tokenizer, spans);
  }

  std::unique_ptr<Engine> engine_;
  TextModel model_;
  GrammarCompiler grammars_;
  std::vector<int32_t> eos_ids_;        // all
  std::vector<int32_t> extra_eos_ids_;  // those that the engine does not know
  std::atomic<uint64_t> next_id_{0};
  std::atomic<bool> stop_{false};
  mutable std::mutex mutex_;
  Status health_;                                            // guarded by mutex_
  std::map<std::string, std::shared_ptr<TextStream>> live_;  // guarded by mutex_
  std::thread thread_;
};

}  // namespace

ChatMessage ChatMessage::user(std::string_view content) {
  const nlohmann::json message = {{"role", "user"}, {"content", content}};
  return {message.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)};
}

std::unique_ptr<LLM> make_llm(std::unique_ptr<Engine> engine, TextModel model) {
  return std::make_unique<TextEngine>(std::move(engine), std::move(model));
}

}  // namespace zipage
