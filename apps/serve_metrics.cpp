#include "serve_metrics.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "bench_run.h"

namespace zipage::apps {
namespace {

using nlohmann::json;

void add_statistics(json& result, const std::string& name, std::vector<double> seconds,
                    const std::vector<double>& percentiles) {
  for (double& each : seconds) each *= 1000;
  const auto count = static_cast<double>(std::max<size_t>(seconds.size(), 1));
  double sum = 0, squares = 0;
  for (const double each : seconds) sum += each;
  for (const double each : seconds) squares += (each - sum / count) * (each - sum / count);
  result[fmt::format("mean_{}_ms", name)] = sum / count;
  result[fmt::format("median_{}_ms", name)] = percentile(seconds, 0.5);
  result[fmt::format("std_{}_ms", name)] = std::sqrt(squares / count);
  for (const double each : percentiles) {
    result[fmt::format("p{}_{}_ms", each, name)] = percentile(seconds, each / 100);
  }
}

// The most requests that ran at one moment.
int most_at_once(const std::vector<ServedRequest>& requests) {
  std::map<double, int> changes;
  for (const ServedRequest& request : requests) {
    if (!request.ok) continue;
    ++changes[request.started];
    --changes[request.started + request.latency];
  }
  int now = 0, most = 0;
  for (const auto& [time, change] : changes) most = std::max(most, now += change);
  return most;
}

}  // namespace

json serve_result(const ServeNumbers& numbers, const std::vector<double>& percentiles) {
  int64_t completed = 0, input = 0, output = 0;
  std::vector<double> ttft, tpot, itl, e2el;
  for (const ServedRequest& request : numbers.requests) {
    if (!request.ok) continue;
    ++completed;
    input += request.input_tokens;
    output += request.output_tokens;
    ttft.push_back(request.ttft);
    e2el.push_back(request.latency);
    itl.insert(itl.end(), request.itl.begin(), request.itl.end());
    if (request.output_tokens > 1) tpot.push_back((request.latency - request.ttft) / (request.output_tokens - 1));
  }
  const double seconds = std::max(numbers.duration, 1e-9);
  json result = {{"duration", numbers.duration},
                 {"completed", completed},
                 {"failed", static_cast<int64_t>(numbers.requests.size()) - completed},
                 {"total_input_tokens", input},
                 {"total_output_tokens", output},
                 {"request_throughput", static_cast<double>(completed) / seconds},
                 {"output_throughput", static_cast<double>(output) / seconds},
                 {"total_token_throughput", static_cast<double>(input + output) / seconds},
                 {"max_concurrent_requests", most_at_once(numbers.requests)}};
  add_statistics(result, "ttft", std::move(ttft), percentiles);
  add_statistics(result, "tpot", std::move(tpot), percentiles);
  add_statistics(result, "itl", std::move(itl), percentiles);
  add_statistics(result, "e2el", std::move(e2el), percentiles);
  return result;
}

}  // namespace zipage::apps
