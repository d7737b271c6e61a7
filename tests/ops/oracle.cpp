#include "ops/oracle.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace zipage::test::oracle {
namespace {

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

Reals softmax(const Reals& x) {
  const double top = *std::max_element(x.begin(), x.end());
  Reals p(x.size(), 0.0);
  if (top == kMinusInfinity) return p;
  double sum = 0;
  for (size_t i = 0; i < x.size(); ++i) sum += p[i] = std::exp(x[i] - top);
  for (double& value : p) value /= sum;
  return p;
}

Reals finite(const std::vector<float>& logits) {
  Reals x;
  for (float logit : logits) x.push_back(std::isfinite(logit) ? static_cast<double>(logit) : kMinusInfinity);
  return x;
}

// Ids by falling value, lower ids first among equals.
std::vector<size_t> ranking(const Reals& x) {
  std::vector<size_t> ids(x.size());
  std::iota(ids.begin(), ids.end(), size_t{0});
  std::stable_sort(ids.begin(), ids.end(), [&](size_t a, size_t b) { return x[a] > x[b]; });
  return ids;
}

void keep_from(Reals& x, double least) {
  for (double& value : x) {
    if (value < least) value = kMinusInfinity;
  }
}

}  // namespace

Reals widen(const std::vector<float>& values) {
  return Reals(values.begin(), values.end());
}

Reals linear(const Reals& x, const Reals& w, const Reals& bias, int64_t rows, int64_t in, int64_t out) {
  Reals y;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t o = 0; o < out; ++o) {
      const double start = bias.empty() ? 0.0 : bias[static_cast<size_t>(o)];
      y.push_back(std::inner_product(x.begin() + r * in, x.begin() + (r + 1) * in, w.begin() + o * in, start));
    }
  }
  return y;
}

Reals linear_mass(const Reals& x, const Reals& w, int64_t rows, int64_t in, int64_t out) {
  Reals ax = x, aw = w;
  for (double& value : ax) value = std::abs(value);
  for (double& value : aw) value = std::abs(value);
  return linear(ax, aw, {}, rows, in, out);
}

Reals rms_norm(const Reals& x, const Reals& weight, double eps, int64_t n) {
  Reals y;
  for (size_t row = 0; row < x.size(); row += static_cast<size_t>(n)) {
    double squares = 0;
    for (size_t i = 0; i < static_cast<size_t>(n); ++i) squares += x[row + i] * x[row + i];
    const double rms = std::sqrt(squares / static_cast<double>(n) + eps);
    for (size_t i = 0; i < static_cast<size_t>(n); ++i) y.push_back(x[row + i] / rms * weight[i]);
  }
  return y;
}

Reals silu_mul(const Reals& gate_up, int64_t rows, int64_t n) {
  Reals y;
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t i = 0; i < n; ++i) {
      const double gate = gate_up[static_cast<size_t>(row * 2 * n + i)];
      y.push_back(gate / (1.0 + std::exp(-gate)) * gate_up[static_cast<size_t>(row * 2 * n + n + i)]);
    }
  }
  return y;
}

Reals rope(const Reals& head, const Reals& angles) {
  Reals y = head;
  for (size_t i = 0; i < angles.size(); ++i) {
    const double a = head[i];
    const double b = head[i + angles.size()];
    y[i] = a * std::cos(angles[i]) - b * std::sin(angles[i]);
    y[i + angles.size()] = a * std::sin(angles[i]) + b * std::cos(angles[i]);
  }
  return y;
}

Reals attention_row(std::span<const double> query, std::span<const double> keys, std::span<const double> values,
                    double scale) {
  const size_t head_dim = query.size();
  Reals y(head_dim, 0.0);
  if (keys.empty()) return y;
  Reals scores;
  for (size_t slot = 0; slot * head_dim < keys.size(); ++slot) {
    scores.push_back(scale * std::inner_product(query.begin(), query.end(),
                                                keys.begin() + static_cast<int64_t>(slot * head_dim), 0.0));
  }
  const Reals p = softmax(scores);
  for (size_t slot = 0; slot < p.size(); ++slot) {
    const double weight = p[slot];
    for (size_t d = 0; d < head_dim; ++d) y[d] += weight * values[slot * head_dim + d];
  }
  return y;
}

Reals sampling_distribution(std::vector<float> logits, const Sampling& sampling) {
  Reals x = finite(logits);
  const int vocab = static_cast<int>(x.size());
  if (sampling.allowed) {
    for (size_t i = 0; i < x.size(); ++i) {
      if (!(*sampling.allowed)[i]) x[i] = kMinusInfinity;
    }
  }
  for (auto [id, value] : sampling.bias) x[static_cast<size_t>(id)] += value;
  for (auto [id, count] : sampling.history) {
    if (id < 0 || id >= vocab) continue;
    double& value = x[static_cast<size_t>(id)];
    value = value > 0 ? value / sampling.repetition : value * sampling.repetition;
    if (count > 0) value -= sampling.presence + sampling.frequency * count;
  }
  const std::vector<size_t> ids = ranking(x);
  if (x[ids[0]] == kMinusInfinity) return Reals(x.size(), 0.0);
  if (sampling.temperature <= 1e-5) {
    Reals p(x.size(), 0.0);
    p[ids[0]] = 1.0;
    return p;
  }
  for (double& value : x) value /= sampling.temperature;
  if (sampling.top_k > 0 && sampling.top_k < vocab) keep_from(x, x[ids[static_cast<size_t>(sampling.top_k) - 1]]);
  if (sampling.top_p < 1) {
    const Reals p = softmax(x);
    double sum = 0;
    size_t count = 0;
    while (count < ids.size() && sum < sampling.top_p) sum += p[ids[count++]];
    keep_from(x, x[ids[std::max<size_t>(count, 1) - 1]]);
  }
  if (sampling.min_p > 0) keep_from(x, x[ids[0]] + std::log(sampling.min_p));
  return softmax(x);
}

Reals logprobs(const std::vector<float>& logits) {
  Reals p = softmax(finite(logits));
  for (double& value : p) value = std::log(value);
  return p;
}

}  // namespace zipage::test::oracle
