// What all endpoints share: the model once it is loaded, its names, its parsers, what runs.
//
// Thread-safety: attach() once; the rest from any thread.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/task_threads.h"
#include "text/reasoning_parser.h"
#include "text/request_json.h"
#include "text/tool_parser.h"
#include "zipage/llm.h"

namespace zipage {

class Generation;
class Metrics;
class Router;

struct ServingOptions {
  std::vector<std::string> model_names;  // served names, at least one
  std::string model_root;                // where the model lies, as given
  std::string version;
  std::string reasoning_parser = "auto";
  std::string tool_call_parser = "auto";
  bool request_id_headers = false;           // X-Request-Id in every answer
  bool trust_request_chat_template = false;  // a request may bring a template, which is a program
  bool auto_tool_choice = true;              // tool_choice "auto" looks for calls
  bool force_include_usage = false;          // streams end with the usage whatever they ask for
  bool return_tokens_as_token_ids = false;   // where a request does not say
  std::string response_role = "assistant";
  // No step for so long while work waits: not ready.
  std::chrono::milliseconds stall_timeout{60'000};
};

class Serving {
 public:
  explicit Serving(ServingOptions options);
  ~Serving();

  // The model is loaded and requests may come. kInvalidArgument: a parser does not exist. The LLM must outlive every
  // request.
  Status attach(LLM& llm);

  const ServingOptions& options() const { return options_; }
  LLM* llm() const { return llm_; }  // null while loading
  // Of a model that is attached.
  const std::optional<ReasoningFormat>& reasoning() const { return reasoning_; }
  ToolFormat tools() const { return tools_; }
  RequestContext request_context(RequestKind kind) const;
  // For grammars, which may take seconds to compile: the pool for text work stays free for others.
  TaskThreads& grammar_threads() { return grammar_threads_; }

  int64_t created() const { return created_; }  // seconds since 1970
  const std::vector<std::string>& model_names() const { return options_.model_names; }
  // "" asks for the first. kNotFound for another model's name.
  Status check_model(const std::string& name) const;
  // What this server does not do for clients: other models, and their templates unless they are trusted.
  Status admits(const ParsedRequest& parsed) const;
  Metrics& metrics() { return *metrics_; }  // of a model that is attached
  // Why no request can be served; ok when one can.
  Status available() const;
  // The same, and no when the engine stands still. To be asked now and then: time counts between the questions.
  Status ready();

  // Requests by the id that their client knows.
  void enter(Generation& generation);
  void leave(Generation& generation);
  void abort(const std::string& id);
  void abort_all();
  int num_generations() const;
  std::string next_engine_id(const std::string& id);

 private:
  ServingOptions options_;
  const int64_t created_;
  std::atomic<LLM*> llm_{nullptr};
  std::optional<ReasoningFormat> reasoning_;
  ToolFormat tools_ = ToolFormat::kHermes;
  TaskThreads grammar_threads_{2};
  std::unique_ptr<Metrics> metrics_;
  std::atomic<uint64_t> next_serial_{0};
  mutable std::mutex mutex_;
  std::multimap<std::string, std::weak_ptr<Generation>> generations_;  // guarded by mutex_
  bool had_work_ = false;                                              // guarded by mutex_
  std::chrono::steady_clock::time_point work_since_;                   // guarded by mutex_
};

// Every endpoint. The serving must outlive the router.
void add_routes(Router& router, Serving& serving);
void add_basic_routes(Router& router, Serving& serving);       // health, models, tokenize, ...
void add_response_routes(Router& router, Serving& serving);    // /v1/responses
void add_openapi_routes(Router& router, Serving& serving);     // /openapi.json, /docs
void add_web_page(Router& router);                             // /
void add_completion_routes(Router& router, Serving& serving);  // /v1/completions, /v1/chat/completions

}  // namespace zipage
