// The engine with text around it: tokenizer, chat template, detokenizer, stop strings.
//
// Thread-safety: all methods may be called from any thread. An LLM runs its engine on a thread of its own.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "zipage/engine.h"
#include "zipage/structured_output.h"

namespace zipage {

class CompiledGrammar;

struct ChatMessage {  // role and content, or any JSON object of the chat format
  std::string json;   // {"role": "user", "content": "..."}
  static ChatMessage user(std::string_view content);
};

struct TextOptions {
  std::vector<std::string> stop;  // stop strings, none empty
  bool include_stop_str_in_output = false;
  bool skip_special_tokens = true;
  bool spaces_between_special_tokens = true;
};

struct TextRequest {
  // Exactly one of the three.
  std::optional<std::string> prompt;
  std::optional<std::vector<int32_t>> prompt_token_ids;
  std::vector<ChatMessage> messages;

  // Everything but prompt_token_ids and sink. max_tokens = 0: the rest of the context. With a thinking_token_budget and
  // no end_thinking_token_ids, the model's own <think> and </think> are filled in.
  Request request;
  TextOptions text;
  bool add_special_tokens = true;
  bool add_generation_prompt = true;
  bool continue_final_message = false;
  std::string chat_template;         // overrides the model's
  std::string chat_template_kwargs;  // JSON object
  std::string tools;                 // JSON array

  std::optional<StructuredOutput> structured_output;
  std::string structured_field = "structured_outputs";  // which errors in it name
  std::shared_ptr<const CompiledGrammar> grammar;       // of structured_output, by LLM::compile()
  // As --reasoning-parser names it: the grammar starts behind the thought. "" = there is none.
  std::string reasoning_parser;
};

struct TextOutput {
  std::string request_id;
  std::string delta;  // text since the last piece; whole UTF-8 characters
  RequestOutput tokens;
  FinishReason finish_reason = FinishReason::kNone;
  std::string stop_reason;  // the stop string, or the stop id as text; empty for EOS
  bool finished() const { return finish_reason != FinishReason::kNone; }
};
using TextSink = std::function<void(TextOutput&&)>;

// Where a request's text work is done and its sink called. Takes tasks on any thread and must not block; runs the tasks
// of one request in order, one at a time, and none any more when the LLM is destroyed.
using TextExecutor = std::function<void(std::function<void()> task)>;

class Tokenizer;
class ChatTemplate;

class LLM {
 public:
  // Loads the model and its tokenizer. chat_template: a template's source, in place of the model's.
  static Result<std::unique_ptr<LLM>> create(const EngineConfig& config, std::string chat_template = {});
  // Ends the engine's thread. Requests that still run get a last piece with kAbort, on the calling thread.
  virtual ~LLM() = default;

  // Tokenizes and queues; returns the request's id. Errors as Engine::submit()'s, and those of the chat template, of
  // the text fields and of the structured output, with param(). The sink is not called then. Without an executor the
  // sink runs on the engine's thread and must not block.
  virtual Result<std::string> submit(TextRequest request, TextSink sink, TextExecutor executor = {}) = 0;
  // Compiles the request's structured output, or takes it from the cache, so that submit() need not. May block for
  // seconds. Errors: kInvalidArgument for a grammar that is wrong or takes too much time or memory, kResourceExhausted
  // when too many wait.
  virtual Status compile(TextRequest& request) = 0;
  // The sink gets a last piece with kAbort. Unknown and finished ids are ignored.
  virtual void abort(const std::string& request_id) = 0;

  // Token ids of a request's prompt as submit() would make them.
  virtual Result<std::vector<int32_t>> tokenize(const TextRequest& request) const = 0;
  virtual std::string detokenize(std::span<const int32_t> ids, bool skip_special_tokens = false) const = 0;

  // Why the engine has stopped, after a failure that no step could contain; ok while it runs.
  virtual Status health() const = 0;

  virtual Engine& engine() = 0;
  virtual const Tokenizer& tokenizer() const = 0;
  virtual const ChatTemplate* chat_template() const = 0;  // null: the model has none
  virtual SamplingParams default_sampling() const = 0;    // generation_config.json's
};

}  // namespace zipage
