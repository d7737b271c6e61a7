// zipage bench latency: one batch of equal requests, again and again; vLLM's flags and result keys.
#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>
#include <random>

#include "base/log.h"
#include "batch.h"
#include "bench_run.h"
#include "command.h"
#include "exit_code.h"
#include "interrupt.h"
#include "start.h"
#include "table.h"
#include "text/json_fields.h"

namespace zipage::apps {
namespace {

using nlohmann::json;

constexpr int kPercentiles[] = {10, 25, 50, 75, 90, 99};

class BenchLatency : public Command {
 public:
  void declare(Options& options) override {
    options.add("input-len", "TOKENS", "prompt tokens of each request", &input_len_, 1);
    options.add("output-len", "TOKENS", "output tokens of each, EOS ignored", &output_len_, 1);
    options.add("batch-size", "N", "requests at once", &batch_size_, 1);
    options.add("num-iters-warmup", "N", "batches before the measured ones", &warmup_, 0);
    options.add("num-iters", "N", "measured batches", &iterations_, 1);
    add_common(options, common_, "also write the numbers (JSON) to FILE");
  }

  int run(const Options& /*options*/) override {
    set_log_level(common_.quiet ? LogLevel::kError : LogLevel::kWarning);
    const InterruptGuard guard;
    Result<std::unique_ptr<LLM>> llm = start_llm(common_);
    if (!llm.ok()) return fail(llm.status());
    std::vector<double> seconds;
    Progress progress("bench", static_cast<size_t>(warmup_ + iterations_), common_.quiet);
    for (int i = 0; i < warmup_ + iterations_; ++i) {
      Result<double> took = run_once(**llm, i);
      if (!took.ok()) return fail(took.status());
      if (InterruptGuard::interrupted()) return kExitInterrupted;
      if (i >= warmup_) seconds.push_back(*took);
      progress.update(static_cast<size_t>(i) + 1, int64_t{i + 1} * batch_size_ * output_len_);
    }
    progress.clear();
    return report(seconds);
  }

 private:
  // Every batch has prompts of its own: nothing of it is cached.
  Result<double> run_once(LLM& llm, int iteration) const {
    const auto vocabulary = static_cast<uint64_t>(llm.engine().model().vocab_size);
    std::mt19937_64 random(static_cast<uint64_t>(common_.config.seed) * 1'000'003 + static_cast<uint64_t>(iteration));
    Status error;
    Batch batch;
    batch.size = static_cast<size_t>(batch_size_);
    batch.make = [&](size_t /*index*/) -> Result<TextRequest> {
      TextRequest request;
      std::vector<int32_t> ids(static_cast<size_t>(input_len_));
      for (int32_t& id : ids) id = static_cast<int32_t>(random() % vocabulary);
      request.prompt_token_ids = std::move(ids);
      request.request.sampling.temperature = 0;
      request.request.sampling.ignore_eos = true;
      request.request.sampling.max_tokens = output_len_;
      return request;
    };
    batch.done = [&](size_t /*index*/, BatchResult&& result) {
      if (error.ok()) error = result.error;
    };
    Progress no_progress("", batch.size, true);
    const BatchSummary summary = run_batch(llm, batch, no_progress);
    if (!error.ok()) return error;
    return summary.seconds;
  }

  int report(const std::vector<double>& seconds) const {
    double sum = 0;
    for (const double each : seconds) sum += each;
    const double mean = sum / static_cast<double>(seconds.size());
    json numbers = {{"avg_latency", mean}, {"latencies", seconds}};
    std::vector<std::vector<std::string>> table = {{"latency", "seconds"}, {"mean", fmt::format("{:.4f}", mean)}};
    for (const int each : kPercentiles) {
      const double value = percentile(seconds, each / 100.0);
      numbers["percentiles"][std::to_string(each)] = value;
      table.push_back({fmt::format("p{}", each), fmt::format("{:.4f}", value)});
    }
    fmt::print("{}", markdown_table(table, 1));
    if (common_.output_json.empty()) return kExitOk;
    const Status status = write_file(common_.output_json, to_json_text(numbers) + '\n');
    return status.ok() ? kExitOk : fail(status);
  }

  CommonFlags common_;
  int input_len_ = 32, output_len_ = 128, batch_size_ = 8, warmup_ = 3, iterations_ = 10;
};

}  // namespace

CommandInfo bench_latency_command() {
  return {"bench-latency", "zipage bench latency [MODEL] [FLAGS]", "Seconds of one batch of equal requests.",
          [] { return std::unique_ptr<Command>(std::make_unique<BenchLatency>()); }};
}

}  // namespace zipage::apps
