// What an evaluation found for one task and configuration, and how it is shown.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>

namespace zipage::apps {

struct EvalRow {
  std::string task;       // "all": the mean over the tasks
  std::string kv_policy;  // "full" at budget 0
  int kv_budget = 0;      // tokens
  int n = 0;              // questions
  double pass_at_1 = 0;   // mean over samples and questions
  double ci95[2] = {0, 0};
  double mean_output_tokens = 0;
  double tokens_per_second = 0;  // output tokens, of the configuration's whole run
  int64_t compressions = 0, preemptions = 0;
  int peak_kv_blocks = 0;  // of the pool, in the configuration's whole run
};

// Wilson's 95 % interval of a proportion among n. REQUIRES: n > 0.
struct Interval {
  double low, high;
};
Interval wilson_interval(double proportion, int n);

nlohmann::json to_json(std::span<const EvalRow> rows);
std::string eval_table(std::span<const EvalRow> rows);

// An SVG: pass@1 (with its interval) and tokens/s over the budget, a line a policy, full KV dashed. Draws the rows of
// the task "all". Reads well on a light and on a dark page.
std::string eval_plot(std::span<const EvalRow> rows);

}  // namespace zipage::apps
