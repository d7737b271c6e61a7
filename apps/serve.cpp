// zipage serve: the OpenAI-compatible server, from its flags to its graceful end.
#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>

#include "base/log.h"
#include "base/parse_value.h"
#include "command.h"
#include "exit_code.h"
#include "interrupt.h"
#include "server/http_server.h"
#include "server/serving.h"
#include "shipped_model.h"
#include "start.h"
#include "version.h"

namespace zipage::apps {
namespace {

// As vLLM takes lists of origins: JSON ('["*"]'), or words with commas between.
std::vector<std::string> words_of(std::string_view text) {
  text = trim(text);
  if (text.starts_with('[') && text.ends_with(']')) text = text.substr(1, text.size() - 2);
  std::vector<std::string> words;
  for (std::string_view word : split_list(text)) {
    if (word.size() >= 2 && word.starts_with('"') && word.ends_with('"')) word = word.substr(1, word.size() - 2);
    if (!word.empty()) words.emplace_back(word);
  }
  return words;
}

// A line every ten seconds while there is work.
class StatsLog {
 public:
  explicit StatsLog(Engine& engine) : engine_(engine) {}

  void update() {
    const Clock::time_point now = Clock::now();
    const double seconds = std::chrono::duration<double>(now - last_time_).count();
    if (seconds < 10) return;
    const EngineStats stats = engine_.stats();
    if (stats.steps != last_.steps || stats.num_running + stats.num_waiting > 0) {
      log_info("prompt {:.0f} tokens/s, output {:.0f} tokens/s, {} running, {} waiting, KV {:.1f} %, {} compressions",
               static_cast<double>(stats.prompt_tokens - last_.prompt_tokens) / seconds,
               static_cast<double>(stats.generation_tokens - last_.generation_tokens) / seconds, stats.num_running,
               stats.num_waiting, 100.0 * stats.blocks_live / std::max(1, stats.blocks_total),
               stats.compressions - last_.compressions);
    }
    last_ = stats;
    last_time_ = now;
  }

 private:
  using Clock = std::chrono::steady_clock;
  Engine& engine_;
  EngineStats last_;
  Clock::time_point last_time_ = Clock::now();
};

class Serve : public Command {
 public:
  void declare(Options& options) override {
    options.add("host", "ADDRESS", "address or name to listen on; every address when not given", &http_.host);
    options.add("port", "PORT", "TCP port, 0 = one that is free", &http_.port, 0);
    options.add("uds", "PATH", "listen on a Unix socket in place of host and port", &http_.uds);
    options.add("ssl-certfile", "FILE", "certificate chain, PEM; HTTPS then", &http_.ssl_certfile);
    options.add("ssl-keyfile", "FILE", "private key, PEM", &http_.ssl_keyfile);
    add_words(options, "api-key", "KEY,...",
              "keys of which a request must bring one; also ZIPAGE_API_KEY, VLLM_API_KEY", "", &http_.gate.api_keys);
    add_words(options, "open-paths", "PATH,...", "answered without a key",
              "/health,/ready,/ping,/metrics,/version,/,/docs,/openapi.json", &http_.gate.open_paths);
    http_.gate.allowed_origins = {"*"};
    add_words(options, "allowed-origins", "ORIGIN,...", "origins of web pages that may ask", "*",
              &http_.gate.allowed_origins);
    add_words(options, "allowed-methods", "METHOD,...", "methods that such pages may use", "*",
              &http_.gate.allowed_methods);
    add_words(options, "allowed-headers", "HEADER,...", "headers that such pages may send", "*",
              &http_.gate.allowed_headers);
    options.add("allow-credentials", "such pages may send cookies", &http_.gate.allow_credentials);
    options.add("max-connections", "N", "open connections, 0 = no limit of its own", &http_.max_connections, 0);
    add_bytes(options, "max-body-bytes", "bytes of a request's body", &http_.limits.body_bytes);
    add_bytes(options, "max-total-body-bytes", "bytes of the bodies of all open requests",
              &http_.limits.total_body_bytes);
    add_bytes(options, "max-header-bytes", "bytes of a request's header", &http_.limits.header_bytes);
    options.add("request-timeout", "SECONDS", "for a request to arrive whole", &request_timeout_, 1);
    options.add("keep-alive-timeout", "SECONDS", "a connection may stay idle", &keep_alive_timeout_, 1);
    options.add("write-timeout", "SECONDS", "a client that takes nothing for so long has gone", &write_timeout_, 1);
    options.add("shutdown-timeout", "SECONDS", "running requests may go on after SIGTERM", &shutdown_timeout_, 0);
    options.add("io-threads", "N", "threads for connections", &http_.io_threads, 1);
    options.add("text-threads", "N", "threads for templates, tokenization and JSON", &http_.worker_threads, 1);
    options.add("reasoning-parser", "NAME", "auto, qwen3, deepseek_r1, or empty for none", &serving_.reasoning_parser);
    options.add("enable-request-id-headers", "X-Request-Id in every answer", &serving_.request_id_headers);
    options.add("tool-call-parser", "NAME", "auto, hermes or llama3_json", &serving_.tool_call_parser);
    options.add("enable-auto-tool-choice", "answers are searched for tool calls unless tool_choice says otherwise",
                &serving_.auto_tool_choice);
    options.add("enable-force-include-usage", "every stream ends with its usage", &serving_.force_include_usage);
    options.add("return-tokens-as-token-ids", "log-probabilities name tokens as token_id:N",
                &serving_.return_tokens_as_token_ids);
    options.add("response-role", "NAME", "role of answers", &serving_.response_role);
    add_chat_template(options, common_);
    options.add("trust-request-chat-template", "requests may bring a chat template of their own, which is a program",
                &serving_.trust_request_chat_template);
    options.add("quiet", "errors only in the log", &common_.quiet, 'q');
    options.add_engine(&common_.config);
  }

  int run(const Options& /*options*/) override {
    const InterruptGuard guard;
    if (const Status status = complete_options(); !status.ok()) return fail(status);
    Serving serving(serving_);
    Router router;
    add_routes(router, serving);
    // Probes are answered while the model is being loaded.
    Result<std::unique_ptr<HttpServer>> server = HttpServer::start(http_, router);
    if (!server.ok()) return fail(server.status());
    Result<std::unique_ptr<LLM>> llm = start_llm(common_);
    if (!llm.ok()) return fail(llm.status());
    const int code = serve(**server, serving, **llm);
    server->reset();
    return code;
  }

 private:
  static void add_words(Options& options, std::string_view key, std::string_view metavar, std::string_view help,
                        std::string_view default_text, std::vector<std::string>* target) {
    options.add({{key, KnobType::kStringList, "", metavar, help},
                 0,
                 std::string(default_text),
                 true,
                 [target](std::string_view value) {
                   *target = words_of(value);
                   return Status();
                 }});
  }
  static void add_bytes(Options& options, std::string_view key, std::string_view help, size_t* target) {
    options.add({{key, KnobType::kString, "", "BYTES", help},
                 0,
                 fmt::format("{}", *target),
                 true,
                 [key, target](std::string_view value) {
                   const std::optional<int64_t> bytes = parse_whole_number(value);
                   if (!bytes || *bytes < 1 || *bytes > INT32_MAX) {
                     return invalid_argument(fmt::format("--{} must be a number of bytes, not '{}'", key, value))
                         .with_param(std::string(key));
                   }
                   *target = static_cast<size_t>(*bytes);
                   return Status();
                 }});
  }

  Status complete_options() {
    ZIPAGE_RETURN_IF_ERROR(default_model(common_.config.model));
    for (const char* name : {"ZIPAGE_API_KEY", "VLLM_API_KEY"}) {
      const char* value = std::getenv(name);
      if (http_.gate.api_keys.empty() && value != nullptr) http_.gate.api_keys = words_of(value);
    }
    http_.request_timeout = std::chrono::seconds(request_timeout_);
    http_.keep_alive_timeout = std::chrono::seconds(keep_alive_timeout_);
    http_.write_timeout = std::chrono::seconds(write_timeout_);
    serving_.version = kVersion;
    serving_.model_root = common_.config.model;
    serving_.model_names = common_.config.served_model_name;
    if (serving_.model_names.empty()) serving_.model_names = {common_.config.model};
    return {};
  }

  int serve(HttpServer& server, Serving& serving, LLM& llm) {
    if (const Status status = serving.attach(llm); !status.ok()) return fail(status);
    log_info("serving {} at {}", serving.model_names().front(), server.address());
    bool was_ready = true;
    StatsLog stats_log(llm.engine());
    while (!InterruptGuard::interrupted()) {
      const timespec pause{0, 200'000'000};
      nanosleep(&pause, nullptr);
      const Status ready = serving.ready();
      if (ready.ok() != was_ready) ready.ok() ? log_info("ready again") : log_error("not ready: {}", ready.message());
      was_ready = ready.ok();
      if (!common_.config.disable_log_stats) stats_log.update();
    }
    log_info("ending: {} requests run and have {} s; a second signal ends at once", server.num_exchanges(),
             shutdown_timeout_);
    server.drain(std::chrono::seconds(shutdown_timeout_));
    return kExitOk;
  }

  CommonFlags common_;
  HttpOptions http_;
  ServingOptions serving_;
  int request_timeout_ = 60, keep_alive_timeout_ = 75, write_timeout_ = 60, shutdown_timeout_ = 30;
};

}  // namespace

CommandInfo serve_command() {
  return {"serve", "zipage serve [MODEL] [FLAGS]", "Serves a model over HTTP, as OpenAI and vLLM do.",
          [] { return std::unique_ptr<Command>(std::make_unique<Serve>()); }};
}

}  // namespace zipage::apps
