// One measured run of a set of requests on one configuration.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "batch.h"
#include "zipage/llm.h"

namespace zipage::apps {

struct ThroughputRun {
  double elapsed_time = 0;  // seconds; loading and warming up are not in it
  int64_t num_requests = 0, prompt_tokens = 0, output_tokens = 0;
  double step_ms_p50 = 0, step_ms_p99 = 0;
  double compression_fraction = 0;  // of elapsed_time; with --compression-mode async it passes beside the steps
  // Bytes of weights and resident KV that the steps read, over elapsed_time and the device's measured read peak; none
  // where the backend does not measure its peak. Small models exceed 1: caches hold them.
  std::optional<double> memory_bandwidth_fraction;
  int64_t preemptions = 0, swaps = 0, compressions = 0;
  int peak_kv_blocks = 0;
  bool interrupted = false;

  double requests_per_second() const { return static_cast<double>(num_requests) / elapsed_time; }
  double tokens_per_second() const { return static_cast<double>(prompt_tokens + output_tokens) / elapsed_time; }
  double output_tokens_per_second() const { return static_cast<double>(output_tokens) / elapsed_time; }
};

nlohmann::json to_json(const ThroughputRun& run);

// The value below which `fraction` of the values lie, between neighbours by proportion; 0 when there are none.
double percentile(std::vector<double> values, double fraction);

// A prompt of `length` random ids below vocab_size: the same for the same seed and index, in every bench command.
std::vector<int32_t> random_prompt_ids(int64_t seed, size_t index, int length, int vocab_size);

// Where the requests come from: `make` is called once for each index below `size`.
struct Workload {
  size_t size = 0;
  std::function<Result<TextRequest>(LLM& llm, size_t index)> make;
};

// Loads the model and serves the workload. The first request that fails fails the run. REQUIRES: an InterruptGuard
// lives.
Result<ThroughputRun> measure_throughput(const EngineConfig& config, const std::string& title, const Workload& workload,
                                         bool quiet);

}  // namespace zipage::apps
