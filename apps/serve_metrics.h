// What `bench serve` measures of a server's answers, in vLLM's terms and under its keys.
//
// Thread-safety: values.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace zipage::apps {

struct ServedRequest {
  bool ok = false;
  std::string error;
  int input_tokens = 0, output_tokens = 0;
  double started = 0, ttft = 0, latency = 0;  // seconds; `started` counts from the run's begin
  std::vector<double> itl;                    // seconds between chunks that carry tokens
};

struct ServeNumbers {
  double duration = 0;
  std::vector<ServedRequest> requests;
};

// completed, total_input_tokens, ..., mean_ttft_ms, median_ttft_ms, std_ttft_ms, p99_ttft_ms, and so for tpot, itl,
// e2el.
nlohmann::json serve_result(const ServeNumbers& numbers, const std::vector<double>& percentiles);

}  // namespace zipage::apps
