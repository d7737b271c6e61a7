#include "eval_row.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "table.h"

namespace zipage::apps {

Interval wilson_interval(double proportion, int n) {
  constexpr double z = 1.959964;
  const double scale = 1 + z * z / n;
  const double centre = (proportion + z * z / (2 * n)) / scale;
  const double half = z / scale * std::sqrt(proportion * (1 - proportion) / n + z * z / (4.0 * n * n));
  return {std::max(0.0, centre - half), std::min(1.0, centre + half)};
}

nlohmann::json to_json(std::span<const EvalRow> rows) {
  nlohmann::json list = nlohmann::json::array();
  for (const EvalRow& row : rows) {
    list.push_back({{"task", row.task},
                    {"kv_policy", row.kv_policy},
                    {"kv_budget", row.kv_budget},
                    {"n", row.n},
                    {"pass_at_1", row.pass_at_1},
                    {"ci95", {row.ci95[0], row.ci95[1]}},
                    {"mean_output_tokens", row.mean_output_tokens},
                    {"tokens_per_second", row.tokens_per_second},
                    {"compressions", row.compressions},
                    {"preemptions", row.preemptions},
                    {"peak_kv_blocks", row.peak_kv_blocks}});
  }
  return list;
}

std::string eval_table(std::span<const EvalRow> rows) {
  std::vector<std::vector<std::string>> cells = {{"task", "KV policy", "budget", "n", "pass@1", "95 % interval",
                                                  "output tokens", "tokens/s", "compressions", "preemptions",
                                                  "peak blocks"}};
  for (const EvalRow& row : rows) {
    cells.push_back({row.task, row.kv_policy, row.kv_budget == 0 ? "all" : fmt::format("{}", row.kv_budget),
                     fmt::format("{}", row.n), fmt::format("{:.3f}", row.pass_at_1),
                     fmt::format("{:.3f} to {:.3f}", row.ci95[0], row.ci95[1]),
                     fmt::format("{:.0f}", row.mean_output_tokens), fmt::format("{:.0f}", row.tokens_per_second),
                     fmt::format("{}", row.compressions), fmt::format("{}", row.preemptions),
                     fmt::format("{}", row.peak_kv_blocks)});
  }
  return markdown_table(cells, 2);
}

}  // namespace zipage::apps
