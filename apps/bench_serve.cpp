// zipage bench serve: load on a running server, ours or any other that speaks OpenAI's API; vLLM's flags and result
// keys.
#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <ctime>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>

#include "base/log.h"
#include "base/parse_value.h"
#include "base/thread_role.h"
#include "bench_run.h"
#include "command.h"
#include "exit_code.h"
#include "http_client.h"
#include "interrupt.h"
#include "progress.h"
#include "serve_metrics.h"
#include "start.h"
#include "table.h"
#include "text/json_fields.h"

namespace zipage::apps {
namespace {

using nlohmann::json;
using Clock = std::chrono::steady_clock;

// Words that every vocabulary has in few tokens; random ones make prompts of about a wanted length for a server that
// does not say how large its vocabulary is, and for chats. Its usage says how many tokens they were.
constexpr std::string_view kWords[] = {"time", "year",  "people", "way",    "day",   "man",    "thing",   "woman",
                                       "life", "child", "world",  "school", "state", "family", "student", "group"};

// When the requests start, and how many may run.
struct Arrivals {
  double rate = std::numeric_limits<double>::infinity();  // requests a second
  double burstiness = 1;                                  // 1 = Poisson, less = bursts, more = evenly
  int most_at_once = 0;                                   // 0 = no limit

  std::vector<double> start_times(size_t count, std::mt19937_64& random) const {
    std::vector<double> times(count, 0);
    if (std::isinf(rate)) return times;
    std::gamma_distribution<double> gap(burstiness, 1 / (rate * burstiness));
    double now = 0;
    for (double& time : times) time = std::exchange(now, now + gap(random));
    return times;
  }
};

class Load {
 public:
  Load(HttpTarget target, std::string path, std::string api_key, std::vector<std::string> bodies, Arrivals arrivals,
       std::vector<double> starts, bool quiet)
      : client_(std::move(target)),
        path_(std::move(path)),
        api_key_(std::move(api_key)),
        bodies_(std::move(bodies)),
        arrivals_(arrivals),
        starts_(std::move(starts)),
        progress_("bench", bodies_.size(), quiet) {
    numbers_.requests.resize(bodies_.size());
  }

  ServeNumbers run() {
    begin_ = Clock::now();
    for (size_t i = 0; i < bodies_.size(); ++i) {
      client_.after(starts_[i], [this, i] { arrive(i); });
    }
    watch_interrupt();
    client_.run();
    numbers_.duration = now();
    progress_.clear();
    return std::move(numbers_);
  }

 private:
  double now() const { return std::chrono::duration<double>(Clock::now() - begin_).count(); }

  void watch_interrupt() {
    if (num_done_ == bodies_.size()) return;
    if (InterruptGuard::interrupted()) return client_.stop();
    client_.after(0.1, [this] { watch_interrupt(); });
  }

  void arrive(size_t index) {
    if (arrivals_.most_at_once > 0 && num_running_ >= arrivals_.most_at_once) {
      waiting_.push_back(index);
      return;
    }
    start(index);
  }

  void start(size_t index) {
    ++num_running_;
    ServedRequest& request = numbers_.requests[index];
    request.started = now();
    const auto events = std::make_shared<EventReader>([this, &request](std::string_view data) { take(request, data); });
    HttpPost post;
    post.path = path_;
    post.api_key = api_key_;
    post.body = std::move(bodies_[index]);
    post.data = [events](std::string_view bytes) { events->push(bytes); };
    post.done = [this, &request](const Status& status) { finish(request, status); };
    client_.post(std::move(post));
  }

  // Whether a chunk is one of the many that say nothing but text, without the cost of parsing it.
  static bool is_text_alone(std::string_view data) {
    if (data.find(R"("usage":{)") != std::string_view::npos || data.find(R"("error")") != std::string_view::npos) {
      return false;
    }
    for (const std::string_view key : {R"("text":")", R"("content":")", R"("reasoning_content":")"}) {
      const size_t at = data.find(key);
      if (at != std::string_view::npos && data.substr(at + key.size(), 1) != "\"") return true;
    }
    return false;
  }

  void take(ServedRequest& request, std::string_view data) {
    if (is_text_alone(data)) return count_tokens(request);
    const json event = json::parse(data, nullptr, false);
    if (!event.is_object()) return;  // [DONE]
    if (event.contains("error")) request.error = event["error"].value("message", "an error in the stream");
    if (event.contains("usage") && event["usage"].is_object()) {
      request.input_tokens = event["usage"].value("prompt_tokens", 0);
      request.output_tokens = event["usage"].value("completion_tokens", 0);
    }
    if (!event.contains("choices") || event["choices"].empty()) return;
    const json& choice = event["choices"][0];
    const json delta = choice.value("delta", json::object());
    const auto carries = [](const json& holder, const char* key) {
      return holder.contains(key) && holder[key].is_string() && !holder[key].get_ref<const std::string&>().empty();
    };
    if (!carries(choice, "text") && !carries(delta, "content") && !carries(delta, "reasoning_content")) return;
    count_tokens(request);
  }

  void count_tokens(ServedRequest& request) {
    const double time = now() - request.started;
    if (request.ttft == 0) {
      request.ttft = time;
    } else {
      request.itl.push_back(time - request.latency);
    }
    request.latency = time;
    ++num_chunks_;
    progress_.update(num_done_, num_chunks_);
  }

  void finish(ServedRequest& request, const Status& status) {
    --num_running_;
    ++num_done_;
    if (request.error.empty()) request.error = status.message();
    // Tokens without a text of their own come with the end.
    if (request.ttft == 0) request.ttft = request.latency = now() - request.started;
    request.ok = request.error.empty() && request.output_tokens > 0;
    if (request.error.empty() && !request.ok) request.error = "the answer had no tokens";
    progress_.update(num_done_, num_chunks_);
    if (waiting_.empty()) return;
    const size_t next = waiting_.front();
    waiting_.erase(waiting_.begin());
    start(next);
  }

  HttpClient client_;
  std::string path_, api_key_;
  std::vector<std::string> bodies_;
  Arrivals arrivals_;
  std::vector<double> starts_;
  Progress progress_;
  ServeNumbers numbers_;
  Clock::time_point begin_;
  std::vector<size_t> waiting_;
  int num_running_ = 0;
  size_t num_done_ = 0;
  int64_t num_chunks_ = 0;
};

class BenchServe : public Command {
 public:
  void declare(Options& options) override {
    options.add("backend", "NAME", "openai (completions) or openai-chat", &backend_);
    options.add("base-url", "URL", "the server [http://HOST:PORT]", &base_url_);
    options.add("host", "NAME", "the server's name", &host_);
    options.add("port", "PORT", "and port", &port_, 1);
    options.add("endpoint", "PATH", "[/v1/completions or /v1/chat/completions]", &endpoint_);
    options.add("model", "NAME", "[the first that the server names]", &model_);
    options.add("api-key", "KEY", "sent as a bearer token", &api_key_);
    options.add("dataset-name", "NAME", "random, or custom: JSONL with \"prompt\" and \"output_tokens\"", &dataset_);
    options.add("dataset-path", "FILE", "the requests of custom", &dataset_path_);
    options.add("num-prompts", "N", "requests", &num_prompts_, 1);
    options.add("random-input-len", "TOKENS",
                "token ids of a random prompt, those of bench throughput; words in a chat, or where /v1/models has no "
                "vocab_size",
                &input_len_, 1);
    options.add("random-output-len", "TOKENS", "output tokens of each", &output_len_, 1);
    options.add("ignore-eos", "outputs have exactly the wanted length; random ones have", &ignore_eos_);
    add_number(options, "request-rate", "requests a second; inf = all at once", "inf", &arrivals_.rate);
    add_number(options, "burstiness", "1 = Poisson, less = bursts, more = evenly", "1", &arrivals_.burstiness);
    options.add("max-concurrency", "N", "requests that run at once, 0 = no limit", &arrivals_.most_at_once, 0);
    options.add("seed", "N", "of prompts and arrivals", &seed_, 0);
    options.add("metric-percentiles", "P,...", "of every metric", &percentiles_);
    options.add("save-result", "write the numbers to --result-filename", &save_result_);
    options.add("result-filename", "FILE", "[BACKEND-DATE.json]", &result_filename_);
    options.add("output-json", "FILE", "the same as --save-result --result-filename FILE", &output_json_);
    options.add("extra-body", "JSON", "further fields of every request", &extra_body_);
    options.add("quiet", "no progress on stderr", &quiet_, 'q');
  }

  int run(const Options& /*options*/) override {
    const InterruptGuard guard;
    wake_without_preempting();  // a server on this machine is to be disturbed by its own work alone
    const Result<json> result = measure();
    if (!result.ok()) return fail(result.status());
    if (InterruptGuard::interrupted()) return kExitInterrupted;
    return report(*result);
  }

 private:
  static void add_number(Options& options, std::string_view key, std::string_view help, std::string_view default_text,
                         double* target) {
    options.add({{key, KnobType::kFloat, "", "X", help},
                 0,
                 std::string(default_text),
                 true,
                 [key, target](std::string_view text) {
                   const std::optional<double> value =
                       text == "inf" ? std::numeric_limits<double>::infinity() : parse_real(text);
                   if (!value || !(*value > 0)) {
                     return invalid_argument(fmt::format("--{} must be a number above 0, not '{}'", key, text))
                         .with_param(std::string(key));
                   }
                   *target = *value;
                   return Status();
                 }});
  }

  Result<json> measure() {
    if (backend_ != "openai" && backend_ != "openai-chat" && backend_ != "vllm") {
      return invalid_argument(fmt::format("--backend must be openai or openai-chat, not '{}'", backend_))
          .with_param("backend");
    }
    chat_ = backend_ == "openai-chat";
    if (endpoint_.empty()) endpoint_ = chat_ ? "/v1/chat/completions" : "/v1/completions";
    if (base_url_.empty()) base_url_ = fmt::format("http://{}:{}", host_, port_);
    ZIPAGE_ASSIGN_OR_RETURN(const HttpTarget target, parse_url(base_url_));
    ZIPAGE_ASSIGN_OR_RETURN(const std::vector<double> percentiles, wanted_percentiles());
    HttpClient client(target);
    ZIPAGE_RETURN_IF_ERROR(find_model(client));
    ZIPAGE_ASSIGN_OR_RETURN(std::vector<std::string> bodies, request_bodies());
    std::mt19937_64 random(static_cast<uint64_t>(seed_));
    std::vector<double> starts = arrivals_.start_times(bodies.size(), random);
    Load load(target, endpoint_, api_key_, std::move(bodies), arrivals_, std::move(starts), quiet_);
    const ServeNumbers numbers = load.run();
    for (const ServedRequest& request : numbers.requests) {
      if (request.ok || request.error.empty()) continue;
      log_warning("a request failed: {}", request.error);
      break;
    }
    json result = serve_result(numbers, percentiles);
    result["backend"] = backend_;
    result["model_id"] = model_;
    result["num_prompts"] = numbers.requests.size();
    result["request_rate"] = std::isinf(arrivals_.rate) ? json("inf") : json(arrivals_.rate);
    result["burstiness"] = arrivals_.burstiness;
    result["max_concurrency"] = arrivals_.most_at_once > 0 ? json(arrivals_.most_at_once) : json();
    const std::time_t now = std::time(nullptr);
    std::tm parts{};
    localtime_r(&now, &parts);
    result["date"] = fmt::format("{:04}{:02}{:02}-{:02}{:02}{:02}", parts.tm_year + 1900, parts.tm_mon + 1,
                                 parts.tm_mday, parts.tm_hour, parts.tm_min, parts.tm_sec);
    return result;
  }

  Result<std::vector<double>> wanted_percentiles() const {
    std::vector<double> wanted;
    for (const std::string_view word : split_list(percentiles_)) {
      const std::optional<double> value = parse_real(word);
      if (!value || !(*value >= 0 && *value <= 100)) {
        return invalid_argument(fmt::format("--metric-percentiles: '{}' is no percentile", word))
            .with_param("metric-percentiles");
      }
      wanted.push_back(*value);
    }
    return wanted;
  }

  Status find_model(HttpClient& client) {
    const Result<std::string> text = client.get("/v1/models", api_key_);
    if (!text.ok()) return model_.empty() ? text.status() : Status();
    const json models = json::parse(*text, nullptr, false);
    const bool named = models.is_object() && models.contains("data") && models["data"].is_array() &&
                       !models["data"].empty() && models["data"][0].contains("id");
    if (named) {
      const json& first = models["data"][0];
      if (model_.empty()) model_ = first["id"];
      if (first.contains("vocab_size") && first["vocab_size"].is_number_integer()) vocab_size_ = first["vocab_size"];
    }
    if (model_.empty()) return Status(StatusCode::kUnavailable, "/v1/models names no model: give --model");
    return {};
  }

  Result<std::vector<std::string>> request_bodies() const {
    json extra = json::object();
    if (!extra_body_.empty()) {
      ZIPAGE_ASSIGN_OR_RETURN(extra, parse_json_object(extra_body_));
    }
    std::vector<std::pair<json, int>> prompts;
    if (dataset_ == "custom") {
      ZIPAGE_ASSIGN_OR_RETURN(prompts, read_prompts());
    } else if (dataset_ == "random") {
      prompts = random_prompts();
    } else {
      return invalid_argument(fmt::format("--dataset-name must be random or custom, not '{}'", dataset_))
          .with_param("dataset-name");
    }
    std::vector<std::string> bodies;
    for (const auto& [prompt, output_tokens] : prompts) {
      json body = {
          {"model", model_}, {"temperature", 0}, {"stream", true}, {"stream_options", {{"include_usage", true}}}};
      if (chat_) {
        body["messages"] = {{{"role", "user"}, {"content", prompt}}};
        body["max_completion_tokens"] = output_tokens;
      } else {
        body["prompt"] = prompt;
        body["max_tokens"] = output_tokens;
      }
      if (ignore_eos_ || dataset_ == "random") body["ignore_eos"] = true;
      body.update(extra);
      bodies.push_back(to_json_text(body));
    }
    return bodies;
  }

  std::vector<std::pair<json, int>> random_prompts() const {
    std::mt19937_64 random(static_cast<uint64_t>(seed_));
    std::vector<std::pair<json, int>> prompts;
    for (int i = 0; i < num_prompts_; ++i) {
      if (vocab_size_ > 0 && !chat_) {
        prompts.emplace_back(random_prompt_ids(seed_, static_cast<size_t>(i), input_len_, vocab_size_), output_len_);
        continue;
      }
      std::string prompt;
      for (int word = 0; word < input_len_; ++word) {
        if (word > 0) prompt += ' ';
        prompt += kWords[random() % std::size(kWords)];
      }
      prompts.emplace_back(std::move(prompt), output_len_);
    }
    return prompts;
  }

  Result<std::vector<std::pair<json, int>>> read_prompts() const {
    std::ifstream file(dataset_path_, std::ios::binary);
    if (!file) {
      return invalid_argument(fmt::format("--dataset-path: '{}' cannot be read", dataset_path_))
          .with_param("dataset-path");
    }
    std::vector<std::pair<json, int>> prompts;
    for (std::string line; std::getline(file, line) && static_cast<int>(prompts.size()) < num_prompts_;) {
      if (trim(line).empty()) continue;
      ZIPAGE_ASSIGN_OR_RETURN(const json row, parse_json_object(line));
      std::string prompt;
      int output_tokens = output_len_;
      JsonFields fields(row);
      fields.read("prompt", prompt);
      fields.read("output_tokens", output_tokens, 1, std::numeric_limits<int>::max());
      ZIPAGE_RETURN_IF_ERROR(fields.status());
      prompts.emplace_back(std::move(prompt), output_tokens);
    }
    if (prompts.empty()) return invalid_argument(fmt::format("{}: has no lines", dataset_path_));
    return prompts;
  }

  int report(const json& result) {
    const auto text = [&](const std::string& key) {
      const double value = result.value(key, 0.0);
      return std::floor(value) == value ? fmt::format("{:.0f}", value) : fmt::format("{:.2f}", value);
    };
    std::vector<std::vector<std::string>> counts = {{"", "value"}};
    for (const char* key : {"completed", "failed", "duration", "total_input_tokens", "total_output_tokens",
                            "request_throughput", "output_throughput", "total_token_throughput"}) {
      counts.push_back({key, text(key)});
    }
    std::vector<std::vector<std::string>> table = {{"ms", "mean", "median"}};
    for (const std::string_view each : split_list(percentiles_)) table[0].push_back(fmt::format("p{}", each));
    for (const char* metric : {"ttft", "tpot", "itl", "e2el"}) {
      std::vector<std::string> row = {metric, text(fmt::format("mean_{}_ms", metric)),
                                      text(fmt::format("median_{}_ms", metric))};
      for (const std::string_view each : split_list(percentiles_)) {
        row.push_back(text(fmt::format("p{}_{}_ms", each, metric)));
      }
      table.push_back(std::move(row));
    }
    fmt::print("{}\n{}", markdown_table(counts, 1), markdown_table(table, 1));
    std::string path = output_json_;
    if (path.empty() && save_result_) {
      path = result_filename_.empty() ? fmt::format("{}-{}.json", backend_, result["date"].get<std::string>())
                                      : result_filename_;
    }
    if (!path.empty()) {
      const Status status = write_file(path, to_json_text(result) + '\n');
      if (!status.ok()) return fail(status);
    }
    return result["failed"] == 0 ? kExitOk : kExitSomeFailed;
  }

  std::string backend_ = "openai", base_url_, host_ = "127.0.0.1", endpoint_, model_, api_key_;
  std::string dataset_ = "random", dataset_path_, percentiles_ = "99", result_filename_, output_json_, extra_body_;
  int port_ = 8000, num_prompts_ = 1000, input_len_ = 1024, output_len_ = 128, seed_ = 0;
  int vocab_size_ = 0;  // 0: the server does not say
  bool ignore_eos_ = false, save_result_ = false, quiet_ = false, chat_ = false;
  Arrivals arrivals_;
};

}  // namespace

CommandInfo bench_serve_command() {
  return {"bench-serve", "zipage bench serve [FLAGS]",
          "Load on a running server: time to the first token, between tokens, and throughput.",
          [] { return std::unique_ptr<Command>(std::make_unique<BenchServe>()); }};
}

}  // namespace zipage::apps
