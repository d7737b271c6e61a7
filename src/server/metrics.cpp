#include "server/metrics.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <iterator>
#include <utility>

#include "zipage/request.h"

namespace zipage {
namespace {

const std::initializer_list<double> kFirstTokenBounds = {.001, .005, .01, .02, .04, .06, .08, .1, .25, .5,  .75,
                                                         1,    2.5,  5,   7.5, 10,  20,  40,  80, 160, 640, 2560};
const std::initializer_list<double> kInterTokenBounds = {.01, .025, .05, .075, .1,  .15, .2, .3, .4, .5,
                                                         .75, 1,    2.5, 5,    7.5, 10,  20, 40, 80};
const std::initializer_list<double> kLatencyBounds = {.3, .5, .8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
                                                      30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680};

// 1, 2, 5, 10, 20, 50, ... up to `most`.
std::vector<double> one_two_five(int most) {
  std::vector<double> bounds;
  for (double power = 1;; power *= 10) {
    for (const double digit : {1.0, 2.0, 5.0}) {
      if (digit * power > most) return bounds;
      bounds.push_back(digit * power);
    }
  }
}

std::string escaped(std::string_view label) {
  std::string result;
  for (const char c : label) {
    if (c == '\n') {
      result += "\\n";
      continue;
    }
    if (c == '\\' || c == '"') result += '\\';
    result += c;
  }
  return result;
}

// As Python writes floats, which dashboards' queries for a bucket rely on: "1.0", "0.005", "+Inf".
std::string number(double value) {
  if (std::isinf(value)) return "+Inf";
  std::string text = fmt::format("{}", value);
  if (text.find_first_of(".en") == std::string::npos) text += ".0";
  return text;
}

class Exposition {
 public:
  explicit Exposition(std::string labels) : labels_(std::move(labels)) {}

  void begin(std::string_view name, std::string_view type, std::string_view help) {
    name_ = name;
    fmt::format_to(out(), "# HELP {0} {2}\n# TYPE {0} {1}\n", name, type, help);
  }
  void sample(double value, std::string_view more_labels = "", std::string_view suffix = "") {
    const char* comma = more_labels.empty() ? "" : ",";
    fmt::format_to(out(), "{}{}{{{}{}{}}} {}\n", name_, suffix, labels_, comma, more_labels, number(value));
  }
  void gauge(std::string_view name, std::string_view help, double value) {
    begin(name, "gauge", help);
    sample(value);
  }
  void counter(std::string_view name, std::string_view help, double value) {
    begin(name, "counter", help);
    sample(value);
  }
  void histogram(std::string_view name, std::string_view help, std::span<const double> bounds,
                 std::span<const int64_t> counts, double sum) {
    begin(name, "histogram", help);
    int64_t total = 0;
    for (size_t i = 0; i < counts.size(); ++i) {
      total += counts[i];
      const double bound = i < bounds.size() ? bounds[i] : HUGE_VAL;
      sample(static_cast<double>(total), fmt::format("le=\"{}\"", number(bound)), "_bucket");
    }
    sample(static_cast<double>(total), "", "_count");
    sample(sum, "", "_sum");
  }
  void histogram(std::string_view name, std::string_view help, const Histogram& histogram_of) {
    const Histogram::Snapshot snapshot = histogram_of.snapshot();
    histogram(name, help, histogram_of.bounds(), snapshot.counts, snapshot.sum);
  }
  std::string take() { return std::move(text_); }

 private:
  std::back_insert_iterator<std::string> out() { return std::back_inserter(text_); }
  std::string text_, labels_, name_;
};

void add_engine(Exposition& to, const EngineStats& stats) {
  const auto d = [](auto value) { return static_cast<double>(value); };
  to.gauge("vllm:num_requests_running", "Requests in the running batch.", stats.num_running);
  to.gauge("vllm:num_requests_waiting", "Requests waiting to be run.", stats.num_waiting);
  to.gauge("vllm:kv_cache_usage_perc", "Fraction of the KV blocks that requests hold; 1 is all.",
           stats.blocks_total == 0 ? 0 : d(stats.blocks_live) / stats.blocks_total);
  to.counter("vllm:num_preemptions_total", "Preemptions.", d(stats.preemptions));
  to.counter("vllm:prefix_cache_queries_total", "Prompt tokens looked up in the prefix cache.",
             d(stats.prefix_cache_queries));
  to.counter("vllm:prefix_cache_hits_total", "Prompt tokens found in the prefix cache.", d(stats.prefix_cache_hits));
  to.counter("vllm:prompt_tokens_total", "Prompt tokens computed.", d(stats.prompt_tokens));
  to.counter("vllm:generation_tokens_total", "Tokens generated.", d(stats.generation_tokens));
  to.begin("vllm:request_success_total", "counter", "Finished requests.");
  for (const FinishReason reason :
       {FinishReason::kStop, FinishReason::kLength, FinishReason::kAbort, FinishReason::kError}) {
    to.sample(d(stats.finished[static_cast<size_t>(reason)]), fmt::format("finished_reason=\"{}\"", name(reason)));
  }
  to.counter("vllm:corrupted_requests_total", "Requests whose logits had no finite value.",
             d(stats.corrupted_requests));
  const std::vector<double> bounds(kStepTokenBounds.begin(), kStepTokenBounds.end());
  to.histogram("vllm:iteration_tokens_total", "Tokens a step.", bounds, stats.steps_by_tokens, d(stats.step_tokens));
}

void add_compression(Exposition& to, const EngineStats& stats) {
  const auto d = [](auto value) { return static_cast<double>(value); };
  to.counter("zipage:compressions_total", "Compressions of a request's KV.", d(stats.compressions));
  to.counter("zipage:evicted_tokens_total", "Tokens whose KV was evicted.", d(stats.evicted_tokens));
  to.counter("zipage:compression_seconds_total", "Time spent in compressions.", stats.compression_seconds);
  to.gauge("zipage:compressing_requests", "Requests being compressed.", stats.num_compressing);
  to.gauge("zipage:query_slots_used", "Query slots in use.", stats.query_slots_used);
  to.begin("zipage:blocks", "gauge", "KV blocks by state.");
  to.sample(stats.blocks_live, "state=\"live\"");
  to.sample(stats.blocks_cached, "state=\"cached\"");
  to.sample(stats.blocks_free, "state=\"free\"");
  to.sample(stats.blocks_quarantined, "state=\"quarantined\"");
  to.begin("zipage:swaps_total", "counter", "Requests swapped to the host's memory and back.");
  to.sample(d(stats.swaps_out), "direction=\"out\"");
  to.sample(d(stats.swaps_in), "direction=\"in\"");
  to.counter("zipage:swap_bytes_total", "Bytes swapped.", d(stats.swap_bytes));
  to.gauge("zipage:kv_resident_tokens", "Tokens whose KV running requests hold.", d(stats.kv_resident_tokens));
}

}  // namespace

Histogram::Histogram(std::vector<double> bounds)
    : bounds_(std::move(bounds)), counts_(new std::atomic<int64_t>[bounds_.size() + 1]()) {}

void Histogram::observe(double value) {
  const auto bound = std::lower_bound(bounds_.begin(), bounds_.end(), value);
  counts_[static_cast<size_t>(bound - bounds_.begin())].fetch_add(1, std::memory_order_relaxed);
  sum_.fetch_add(value, std::memory_order_relaxed);
}

Histogram::Snapshot Histogram::snapshot() const {
  Snapshot snapshot;
  for (size_t i = 0; i <= bounds_.size(); ++i) snapshot.counts.push_back(counts_[i].load(std::memory_order_relaxed));
  snapshot.sum = sum_.load(std::memory_order_relaxed);
  return snapshot;
}

Metrics::Metrics(int max_model_len)
    : time_to_first_token_(kFirstTokenBounds),
      inter_token_latency_(kInterTokenBounds),
      e2e_latency_(kLatencyBounds),
      queue_time_(kLatencyBounds),
      prefill_time_(kLatencyBounds),
      decode_time_(kLatencyBounds),
      prompt_tokens_(one_two_five(max_model_len)),
      generation_tokens_(one_two_five(max_model_len)) {}

void Metrics::finished(const FinishedOutput& output) {
  e2e_latency_.observe(output.e2e_seconds);
  queue_time_.observe(output.queue_seconds);
  prefill_time_.observe(output.prefill_seconds);
  decode_time_.observe(output.decode_seconds);
  prompt_tokens_.observe(output.prompt_tokens);
  generation_tokens_.observe(output.output_tokens);
}

std::string Metrics::text(std::string_view model_name, const EngineStats& stats, const EngineConfig& config) const {
  Exposition to(fmt::format("engine=\"0\",model_name=\"{}\"", escaped(model_name)));
  add_engine(to, stats);
  to.histogram("vllm:time_to_first_token_seconds", "From a request's arrival to its first token.",
               time_to_first_token_);
  to.histogram("vllm:inter_token_latency_seconds", "Between two tokens of a request.", inter_token_latency_);
  to.histogram("vllm:e2e_request_latency_seconds", "From a request's arrival to its end.", e2e_latency_);
  to.histogram("vllm:request_queue_time_seconds", "Waiting to be run.", queue_time_);
  to.histogram("vllm:request_prefill_time_seconds", "Computing the prompt.", prefill_time_);
  to.histogram("vllm:request_decode_time_seconds", "From the first token to the last.", decode_time_);
  to.histogram("vllm:request_prompt_tokens", "Tokens of a prompt.", prompt_tokens_);
  to.histogram("vllm:request_generation_tokens", "Tokens of an output.", generation_tokens_);
  to.begin("vllm:cache_config_info", "gauge", "Configuration of the KV cache.");
  to.sample(
      1, fmt::format("block_size=\"{}\",cache_dtype=\"{}\",enable_prefix_caching=\"{}\","
                     "gpu_memory_utilization=\"{}\",num_gpu_blocks=\"{}\",swap_space=\"{}\"",
                     config.block_size, escaped(config.kv_cache_dtype), config.enable_prefix_caching ? "True" : "False",
                     config.gpu_memory_utilization, stats.blocks_total, config.swap_space));
  add_compression(to, stats);
  return to.take();
}

}  // namespace zipage
