#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <vector>

#include "eval_row.h"

namespace zipage::apps {
namespace {

constexpr double kWidth = 860, kHeight = 340, kTop = 40, kBottom = 270, kPanel = 340;
// Mid tones that stand out from white and from black alike.
constexpr std::string_view kColours[] = {"#3b82f6", "#f97316", "#22a06b", "#d946ef",
                                         "#d4a106", "#ef4444", "#0ea5b7", "#8b7355"};

struct Panel {
  double left = 0;
  double top_value = 1;  // at kTop; 0 is at kBottom
  std::vector<int> budgets;

  // Budgets stand at equal distances: they are usually doubled, not added to.
  double x(int budget) const {
    const auto at = std::find(budgets.begin(), budgets.end(), budget) - budgets.begin();
    return left + kPanel * (static_cast<double>(at) + 0.5) / static_cast<double>(std::max<size_t>(budgets.size(), 1));
  }
  double y(double value) const { return kBottom - (kBottom - kTop) * value / top_value; }
};

// The least of 1, 2, 5 times a power of ten that is not below `value`.
double round_up(double value) {
  if (value <= 0) return 1;
  const double power = std::pow(10.0, std::floor(std::log10(value)));
  for (const double step : {1.0, 2.0, 5.0}) {
    if (step * power >= value) return step * power;
  }
  return 10 * power;
}

std::string label(double x, double y, std::string_view anchor, std::string_view text, std::string_view more = "") {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\"{}>{}</text>\n", x, y, anchor, more, text);
}

std::string axes(const Panel& panel, std::string_view title) {
  constexpr int kTicks = 5;
  std::string svg;
  for (int i = 0; i <= kTicks; ++i) {
    const double value = panel.top_value * i / kTicks, y = panel.y(value);
    svg += fmt::format("<line class=\"grid\" x1=\"{0:.1f}\" x2=\"{1:.1f}\" y1=\"{2:.1f}\" y2=\"{2:.1f}\"/>\n",
                       panel.left, panel.left + kPanel, y);
    svg += label(panel.left - 8, y + 4, "end", fmt::format("{:g}", value));
  }
  for (const int budget : panel.budgets)
    svg += label(panel.x(budget), kBottom + 18, "middle", fmt::format("{}", budget));
  svg += label(panel.left + kPanel / 2, kBottom + 36, "middle", "KV budget (tokens)");
  const double x = panel.left - 44, y = (kTop + kBottom) / 2;
  svg += label(x, y, "middle", title, fmt::format(" transform=\"rotate(-90 {:.1f} {:.1f})\"", x, y));
  return svg;
}

template <typename Value>
std::string series(const Panel& panel, std::span<const EvalRow* const> rows, std::string_view colour, bool intervals,
                   Value value) {
  std::string points, svg;
  for (const EvalRow* row : rows) {
    const double x = panel.x(row->kv_budget), y = panel.y(value(*row));
    points += fmt::format("{:.1f},{:.1f} ", x, y);
    if (intervals) {
      svg += fmt::format("<line x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1:.1f}\" y2=\"{2:.1f}\" stroke=\"{3}\"/>\n", x,
                         panel.y(row->ci95[0]), panel.y(row->ci95[1]), colour);
    }
    svg += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3.5\" fill=\"{}\"/>\n", x, y, colour);
  }
  return svg +
         fmt::format("<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2\"/>\n", points, colour);
}

std::string full_line(const Panel& panel, double value) {
  return fmt::format("<line class=\"full\" x1=\"{0:.1f}\" x2=\"{1:.1f}\" y1=\"{2:.1f}\" y2=\"{2:.1f}\"/>\n", panel.left,
                     panel.left + kPanel, panel.y(value));
}

}  // namespace

std::string eval_plot(std::span<const EvalRow> rows) {
  const EvalRow* full = nullptr;
  std::map<std::string, std::vector<const EvalRow*>> by_policy;
  std::set<int> budgets;
  double fastest = 0;
  for (const EvalRow& row : rows) {
    if (row.task != "all") continue;
    fastest = std::max(fastest, row.tokens_per_second);
    if (row.kv_budget == 0) {
      full = &row;
      continue;
    }
    by_policy[row.kv_policy].push_back(&row);
    budgets.insert(row.kv_budget);
  }
  const Panel pass{70, 1, {budgets.begin(), budgets.end()}};
  const Panel speed{500, round_up(fastest), pass.budgets};
  const auto pass_of = [](const EvalRow& row) { return row.pass_at_1; };
  const auto speed_of = [](const EvalRow& row) { return row.tokens_per_second; };

  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" height=\"{1}\" role=\"img\">\n"
      "<title>pass@1 and output tokens per second over the KV budget</title>\n"
      "<style>text{{font:12px sans-serif;fill:#222}}.grid{{stroke:#8886}}.full{{stroke:#555;stroke-width:2;"
      "stroke-dasharray:6 4}}@media(prefers-color-scheme:dark){{text{{fill:#ddd}}.full{{stroke:#bbb}}}}</style>\n",
      kWidth, kHeight);
  svg += axes(pass, "pass@1") + axes(speed, "output tokens/s");
  double legend = pass.left;
  if (full != nullptr) {
    svg += full_line(pass, full->pass_at_1) + full_line(speed, full->tokens_per_second);
    svg += fmt::format("<line class=\"full\" x1=\"{}\" x2=\"{}\" y1=\"20\" y2=\"20\"/>\n", legend, legend + 24);
    svg += label(legend + 30, 24, "start", "full KV");
    legend += 110;
  }
  size_t colour_index = 0;
  for (auto& [policy, points] : by_policy) {
    std::sort(points.begin(), points.end(),
              [](const EvalRow* a, const EvalRow* b) { return a->kv_budget < b->kv_budget; });
    const std::string_view colour = kColours[colour_index++ % std::size(kColours)];
    svg += series(pass, points, colour, true, pass_of) + series(speed, points, colour, false, speed_of);
    svg += fmt::format("<circle cx=\"{}\" cy=\"20\" r=\"4\" fill=\"{}\"/>\n", legend + 6, colour);
    svg += label(legend + 16, 24, "start", policy);
    legend += 90;
  }
  return svg + "</svg>\n";
}

}  // namespace zipage::apps
