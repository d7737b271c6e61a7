// What Prometheus reads at /metrics: vLLM's names, labels and buckets, and ours.
//
// Thread-safety: all methods may be called from any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "zipage/engine.h"

namespace zipage {

class Histogram {
 public:
  // `bounds` are upper ends, ascending; values above the last are counted too.
  explicit Histogram(std::vector<double> bounds);
  void observe(double value);

  struct Snapshot {
    std::vector<int64_t> counts;  // of each bound, then of those above
    double sum = 0;
  };
  Snapshot snapshot() const;
  const std::vector<double>& bounds() const { return bounds_; }

 private:
  std::vector<double> bounds_;
  std::unique_ptr<std::atomic<int64_t>[]> counts_;  // [bounds + 1]
  std::atomic<double> sum_{0};
};

// What is known of one output when it has finished.
struct FinishedOutput {
  double e2e_seconds = 0, queue_seconds = 0, prefill_seconds = 0, decode_seconds = 0;
  int prompt_tokens = 0, output_tokens = 0;
};

class Metrics {
 public:
  // Buckets of token counts reach up to max_model_len.
  explicit Metrics(int max_model_len);

  void first_token(double seconds) { time_to_first_token_.observe(seconds); }
  void next_token(double seconds) { inter_token_latency_.observe(seconds); }
  void finished(const FinishedOutput& output);

  // The text exposition format, with the engine's own counters.
  std::string text(std::string_view model_name, const EngineStats& stats, const EngineConfig& config) const;

 private:
  Histogram time_to_first_token_, inter_token_latency_;
  Histogram e2e_latency_, queue_time_, prefill_time_, decode_time_;
  Histogram prompt_tokens_, generation_tokens_;
};

}  // namespace zipage
