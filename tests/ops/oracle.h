// The ops in double precision on dense arrays, written from their definitions. Shares no code with any backend.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace zipage::test::oracle {

using Reals = std::vector<double>;

Reals widen(const std::vector<float>& values);

// x [rows, in] . w [out, in] transposed (+ bias [out]).
Reals linear(const Reals& x, const Reals& w, const Reals& bias, int64_t rows, int64_t in, int64_t out);
// The same with absolute values: what rounding errors are measured by.
Reals linear_mass(const Reals& x, const Reals& w, int64_t rows, int64_t in, int64_t out);

// x / rms(x) * weight per row of n.
Reals rms_norm(const Reals& x, const Reals& weight, double eps, int64_t n);
Reals silu_mul(const Reals& gate_up, int64_t rows, int64_t n);
// One head: element i and i + rotary_dim / 2 turn by angles[i].
Reals rope(const Reals& head, const Reals& angles);

// One query row over dense keys and values [slots, head_dim].
Reals attention_row(std::span<const double> query, std::span<const double> keys, std::span<const double> values,
                    double scale);

struct Sampling {
  double temperature = 1;
  int top_k = 0;
  double top_p = 1;
  double min_p = 0;
  double repetition = 1, presence = 0, frequency = 0;
  std::vector<std::pair<int, int>> history;  // id, occurrences in the output
  std::vector<std::pair<int, double>> bias;
  std::optional<std::vector<bool>> allowed;
};
// Probabilities of all ids after every filter; greedy: 1 for one id. All 0 when nothing can be sampled.
Reals sampling_distribution(std::vector<float> logits, const Sampling& sampling);

Reals logprobs(const std::vector<float>& logits);

}  // namespace zipage::test::oracle
