// What one client's request makes the engine do: n outputs for each of its prompts, run, split into thought, answer and
// tool calls, counted. Knows neither HTTP nor the JSON of answers.
//
// Thread-safety: prepare() on any thread. The rest happens in tasks of the executor given to start(): start() itself
// and end() must be called there, and the sink is.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "text/reasoning_parser.h"
#include "text/request_json.h"
#include "text/tool_parser.h"
#include "zipage/llm.h"

namespace zipage {

class Serving;

using ToolParserFactory = std::function<std::unique_ptr<ToolParser>()>;

// A piece of one choice. Choices are numbered prompt by prompt: index = prompt * n + sample.
struct ChoiceDelta {
  int index = 0;
  std::string reasoning, content;
  std::vector<ToolCallDelta> tool_calls;
  std::vector<int32_t> token_ids;
  std::vector<TokenLogprobs> logprobs;                        // one per token where asked for
  std::vector<std::optional<TokenLogprobs>> prompt_logprobs;  // on the first piece, where asked for
  FinishReason finish_reason = FinishReason::kNone;
  std::string stop_string;               // the stop string that ended it
  std::optional<int32_t> stop_token_id;  // the stop id that ended it
  int num_output_tokens = 0;             // so far

  bool finished() const { return finish_reason != FinishReason::kNone; }
  // Appends a later piece of the same choice.
  void merge(ChoiceDelta&& later);
};

struct Usage {
  int64_t prompt_tokens = 0, completion_tokens = 0;
  int64_t cached_tokens = 0;     // of the prompts, found in the prefix cache
  int64_t reasoning_tokens = 0;  // of the outputs, inside a thought
  KvStats kv_stats;              // summed over the choices that have finished
};

class Generation : public std::enable_shared_from_this<Generation> {
 public:
  struct Options {
    bool chat = false;
    bool split_reasoning = false;   // into reasoning and content, where the model thinks
    ToolParserFactory tool_parser;  // null: the answer is not searched for tool calls
  };
  struct Sink {
    std::function<void(ChoiceDelta&&)> delta;
    // Once, after the last delta: all choices have finished, or why they have not.
    std::function<void(const Status&)> end;
  };

  // Renders templates, tokenizes. Errors name the field. `id`: what the client knows the request by.
  static Result<std::shared_ptr<Generation>> prepare(Serving& serving, ParsedRequest parsed, std::string id,
                                                     Options options);
  ~Generation();

  // Queues all choices, or none and says why; the sink is not called then.
  Status start(TextExecutor executor, Sink sink);
  // Aborts what still runs. With an error sink.end() gets it; with none (the client has gone) the sink is silent.
  void end(const std::optional<Status>& error);
  // From any thread: every choice that still runs finishes with kAbort.
  void abort();

  const std::string& id() const { return id_; }
  const ParsedRequest& parsed() const { return parsed_; }  // without its prompts
  int num_choices() const { return static_cast<int>(choices_.size()); }
  int num_prompts() const { return static_cast<int>(prompts_.size()); }
  const std::vector<int32_t>& prompt_ids(int choice) const { return prompt_of(choice).token_ids; }
  // As given, or the text of the token ids.
  const std::string& prompt_text(int choice) const { return prompt_of(choice).text; }
  const Usage& usage() const { return usage_; }

 private:
  using Clock = std::chrono::steady_clock;
  struct Prompt {
    std::vector<int32_t> token_ids;
    std::string text;  // only with echo
    PromptThought thought = PromptThought::kUntouched;
  };
  struct Choice {
    std::string engine_id;
    std::optional<ReasoningParser> reasoning;
    std::unique_ptr<ToolParser> tools;
    int num_tokens = 0;
    bool finished = false;
    Clock::time_point last_token;
  };

  Generation(Serving& serving, ParsedRequest parsed, std::string id, Options options);
  Status prepare_prompts();
  const Prompt& prompt_of(int choice) const { return prompts_[static_cast<size_t>(choice / parsed_.n)]; }
  void receive(int index, TextOutput&& piece);
  void split(Choice& choice, TextOutput& piece, ChoiceDelta& delta);
  void count(Choice& choice, const TextOutput& piece);
  void finish(const Status& status);
  void abort_choices();

  Serving& serving_;
  LLM& llm_;
  ParsedRequest parsed_;
  std::string id_;
  Options options_;
  std::vector<TextRequest> requests_;  // until start()
  std::vector<Prompt> prompts_;
  std::vector<Choice> choices_;
  Clock::time_point arrived_ = Clock::now();
  TextExecutor executor_;
  Sink sink_;
  Usage usage_;
  int num_unfinished_ = 0;
  bool ended_ = false;
};

}  // namespace zipage
