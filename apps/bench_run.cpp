#include "bench_run.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <random>

#include "ops/read_bandwidth.h"
#include "text/text_model.h"
#include "timed_engine.h"

namespace zipage::apps {
namespace {

// Touches the weights and starts the threads, which the first requests should not be billed for.
Status warm_up(LLM& llm) {
  Batch batch;
  batch.size = 1;
  batch.make = [](size_t /*index*/) -> Result<TextRequest> {
    TextRequest request;
    request.prompt_token_ids = std::vector<int32_t>(16, 0);
    request.request.sampling.max_tokens = 4;
    request.request.sampling.ignore_eos = true;
    return request;
  };
  Status error;
  batch.done = [&](size_t /*index*/, BatchResult&& result) { error = std::move(result.error); };
  Progress silent("", 1, true);
  run_batch(llm, batch, silent);
  return error;
}

double bytes_per_token(const Engine& engine) {
  const ModelInfo& model = engine.model();
  const double element = engine.config().kv_cache_dtype == "fp8_e4m3" ? 1 : 2;
  return 2.0 * element * model.num_layers * model.num_kv_heads * model.head_dim;
}

}  // namespace

std::vector<int32_t> random_prompt_ids(int64_t seed, size_t index, int length, int vocab_size) {
  std::mt19937_64 generator(static_cast<uint64_t>(seed) * 1'000'003 + index);
  std::vector<int32_t> ids(static_cast<size_t>(length));
  for (int32_t& id : ids) id = static_cast<int32_t>(generator() % static_cast<uint64_t>(vocab_size));
  return ids;
}

nlohmann::json to_json(const ThroughputRun& run) {
  return {{"elapsed_time", run.elapsed_time},
          {"num_requests", run.num_requests},
          {"total_num_tokens", run.prompt_tokens + run.output_tokens},
          {"requests_per_second", run.requests_per_second()},
          {"tokens_per_second", run.tokens_per_second()},
          {"output_tokens_per_second", run.output_tokens_per_second()},
          {"step_ms_p50", run.step_ms_p50},
          {"step_ms_p99", run.step_ms_p99},
          {"compression_fraction", run.compression_fraction},
          {"memory_bandwidth_fraction",
           run.memory_bandwidth_fraction ? nlohmann::json(*run.memory_bandwidth_fraction) : nlohmann::json()},
          {"compressions", run.compressions},
          {"preemptions", run.preemptions},
          {"swaps", run.swaps},
          {"peak_kv_blocks", run.peak_kv_blocks}};
}

double percentile(std::vector<double> values, double fraction) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const double at = fraction * static_cast<double>(values.size() - 1);
  const auto below = static_cast<size_t>(at);
  const size_t above = std::min(below + 1, values.size() - 1);
  return values[below] + (values[above] - values[below]) * (at - std::floor(at));
}

Result<ThroughputRun> measure_throughput(const EngineConfig& config, const std::string& title, const Workload& workload,
                                         bool quiet) {
  ZIPAGE_ASSIGN_OR_RETURN(TextModel model, load_text_model(config, {}));
  // Before the engine starts: its threads would be in the way.
  const double read_peak = measure_read_bandwidth(config.device, {.num_threads = config.threads});
  ZIPAGE_ASSIGN_OR_RETURN(std::unique_ptr<Engine> plain, Engine::create(config));
  auto timed = std::make_unique<TimedEngine>(std::move(plain));
  TimedEngine& engine = *timed;
  const std::unique_ptr<LLM> llm = make_llm(std::move(timed), std::move(model));
  ZIPAGE_RETURN_IF_ERROR(warm_up(*llm));

  ThroughputRun run;
  Status first_error;
  Batch batch;
  batch.size = workload.size;
  batch.make = [&](size_t index) { return workload.make(*llm, index); };
  batch.done = [&](size_t /*index*/, BatchResult&& result) {
    if (first_error.ok()) first_error = std::move(result.error);
    run.prompt_tokens += result.last.tokens.num_prompt_tokens;
    run.output_tokens += result.last.tokens.num_output_tokens;
  };
  const EngineStats before = engine.stats();
  engine.take_step_seconds();
  engine.take_resident_tokens();
  Progress progress(title, workload.size, quiet);
  const BatchSummary summary = run_batch(*llm, batch, progress);
  progress.clear();
  ZIPAGE_RETURN_IF_ERROR(first_error);
  const EngineStats after = engine.stats();
  const std::vector<double> steps = engine.take_step_seconds();

  run.interrupted = summary.interrupted;
  run.elapsed_time = std::max(summary.seconds, 1e-9);
  run.num_requests = static_cast<int64_t>(summary.succeeded);
  run.step_ms_p50 = percentile(steps, 0.5) * 1e3;
  run.step_ms_p99 = percentile(steps, 0.99) * 1e3;
  run.compression_fraction = (after.compression_seconds - before.compression_seconds) / run.elapsed_time;
  if (read_peak > 0) {
    const double bytes = static_cast<double>(steps.size()) * static_cast<double>(engine.model().weight_bytes) +
                         static_cast<double>(engine.take_resident_tokens()) * bytes_per_token(engine);
    run.memory_bandwidth_fraction = bytes / run.elapsed_time / read_peak;
  }
  run.compressions = after.compressions - before.compressions;
  run.preemptions = after.preemptions - before.preemptions;
  run.swaps = after.swaps_out - before.swaps_out + after.swaps_in - before.swaps_in;
  run.peak_kv_blocks = after.peak_blocks_live;
  return run;
}

}  // namespace zipage::apps
