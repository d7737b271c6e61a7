// The compression of one sequence in double precision over dense arrays: every definition written out, nothing shared
// with the code under test. Slots t = 0 .. T-1 in sequence order.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "zipage/compression.h"

namespace zipage::test::oracle {

using Row = std::vector<double>;

// One layer and KV head.
struct Head {
  std::vector<Row> k, v;      // [T][head_dim]
  std::vector<int> position;  // [T]
  Row previous;               // [T] S of an earlier compression; used below num_scored only
};

struct Sequence {
  std::vector<std::vector<Head>> heads;          // [layer][kv head]
  std::vector<std::vector<std::vector<Row>>> q;  // [layer][window row, oldest first][query head][head_dim]
  int num_slots = 0, num_scored = 0, logical_len = 0, prompt_len = 0;
  int query_stride = 1;
  int window = 0, num_heads = 0, head_dim = 0, rotary_dim = 0;
  double scale = 0, theta = 10000, rope_scale = 1;
  int num_kv_heads() const { return static_cast<int>(heads.front().size()); }
};

inline double dot(const Row& a, const Row& b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}

inline Row softmax(const Row& x) {
  const double top = *std::max_element(x.begin(), x.end());
  Row e(x.size());
  std::transform(x.begin(), x.end(), e.begin(),
                 [&](double v) { return std::isinf(v) && v < 0 ? 0 : std::exp(v - top); });
  const double sum = std::accumulate(e.begin(), e.end(), 0.0);
  for (double& v : e) v /= sum;
  return e;
}

inline Row window_scores(const Sequence& s, int layer, int kv_head) {
  const Head& head = s.heads[layer][kv_head];
  const int group = s.num_heads / s.num_kv_heads();
  Row mean(s.num_slots, 0.0);
  // The newest tokens whose positions are multiples of the stride, the newest last; fewer than w where there are no
  // more.
  std::vector<int> row_positions;
  for (int p = s.logical_len - 1; p >= 0 && static_cast<int>(row_positions.size()) < s.window; --p) {
    if (p % s.query_stride == 0) row_positions.insert(row_positions.begin(), p);
  }
  const int num_rows = static_cast<int>(row_positions.size());
  for (int r = 0; r < num_rows; ++r) {
    const int row_position = row_positions[r];
    Row best(s.num_slots, 0.0);
    for (int h = kv_head * group; h < (kv_head + 1) * group; ++h) {
      Row z(s.num_slots);
      for (int t = 0; t < s.num_slots; ++t) {
        z[t] = head.position[t] <= row_position ? dot(s.q[layer][r][h], head.k[t]) * s.scale
                                                : -std::numeric_limits<double>::infinity();
      }
      const Row p = softmax(z);
      for (int t = 0; t < s.num_slots; ++t) best[t] = std::max(best[t], p[t]);
    }
    for (int t = 0; t < s.num_slots; ++t) mean[t] += best[t] / num_rows;
  }
  return mean;
}

inline void weigh_by_values(const Head& head, Row& scores) {
  Row norms;
  for (const Row& v : head.v) norms.push_back(std::sqrt(dot(v, v)));
  const double sum = std::accumulate(norms.begin(), norms.end(), 0.0);
  for (size_t t = 0; t < norms.size(); ++t) {
    scores[t] *= sum > 0 ? norms[t] * static_cast<double>(norms.size()) / sum : 0;
  }
}

inline void carry(const Sequence& s, const Head& head, ScoreCarry how, double decay, Row& scores) {
  for (int t = 0; t < s.num_scored; ++t) {
    const double before = decay * head.previous[t];
    if (how == ScoreCarry::kMax) scores[t] = std::max(scores[t], before);
    if (how == ScoreCarry::kSum) scores[t] += before;
  }
}

inline Row pool(const Sequence& s, const Row& scores, int width) {
  Row out = scores;
  for (int t = s.num_scored; t < s.num_slots; ++t) {
    for (int n = t - width / 2; n <= t + width / 2; ++n) {
      if (n >= s.num_scored && n < s.num_slots) out[t] = std::max(out[t], scores[n]);
    }
  }
  return out;
}

// The key without the rotation of its position.
inline Row content_key(const Sequence& s, const Row& k, int position) {
  Row out = k;
  const int half = s.rotary_dim / 2;
  for (int j = 0; j < half; ++j) {
    const double angle = position / std::pow(s.theta, 2.0 * j / s.rotary_dim);
    out[j] = (k[j] * std::cos(angle) + k[j + half] * std::sin(angle)) / s.rope_scale;
    out[j + half] = (k[j + half] * std::cos(angle) - k[j] * std::sin(angle)) / s.rope_scale;
  }
  return out;
}

struct Redundancy {
  Row value;  // R'
  // How far ln R' may be off when cosines within `margin` of the threshold fall on the other side.
  Row log_slack;
};

inline Redundancy redundancy(const Sequence& s, const Head& head, const CompressionParams& p, double margin) {
  const int T = s.num_slots;
  std::vector<Row> unit(T);
  for (int t = 0; t < T; ++t) {
    unit[t] = p.keys == RedundancyKeys::kContent ? content_key(s, head.k[t], head.position[t]) : head.k[t];
    const double length = std::sqrt(dot(unit[t], unit[t]));
    for (double& x : unit[t]) x = length > 0 ? x / length : 0;
  }
  std::vector<Row> cosine(T, Row(T));
  for (int m = 0; m < T; ++m) {
    for (int n = 0; n <= m; ++n) cosine[m][n] = cosine[n][m] = dot(unit[m], unit[n]);
  }
  const int chunk = p.scope == RedundancyScope::kLightning ? 256 : T;
  Row x(T), slack(T, 0.0);
  for (int begin = 0; begin < T; begin += chunk) {
    const int end = std::min(begin + chunk, T);
    const double weight = 1.0 / (p.temperature * (end - begin));
    Row r(T, 0.0), r_slack(T, 0.0);
    for (int n = begin; n < end; ++n) {
      int last = -1;
      for (int m = begin; m < end; ++m) {
        const double c = cosine[m][n];
        if (m == n) {
          if (p.scope == RedundancyScope::kMean) r[m] += c;
          continue;
        }
        r[m] += c;
        if (c > p.threshold) last = m;
        if (std::abs(c - p.threshold) < margin) r_slack[m] += std::abs(c);
      }
      if (p.scope == RedundancyScope::kMean || last < 0) continue;
      r[last] -= cosine[last][n];
      // A doubtful cosine newer than last(n) may take its place.
      for (int m = last + 1; m < end; ++m) {
        if (m != n && std::abs(cosine[m][n] - p.threshold) < margin) r_slack[last] += 1;
      }
      // A doubtful last(n) may give its place to any older one.
      if (cosine[last][n] - p.threshold < margin) {
        for (int m = begin; m < last; ++m) {
          if (m != n && cosine[m][n] > p.threshold - margin) r_slack[m] += 1;
        }
      }
    }
    for (int m = begin; m < end; ++m) {
      x[m] = r[m] * weight;
      slack[m] = p.scope == RedundancyScope::kMean ? 0 : r_slack[m] * weight;
    }
  }
  const double most = *std::max_element(slack.begin(), slack.end());
  for (double& v : slack) v += most;
  return {softmax(x), slack};
}

inline bool is_protected(const Sequence& s, const Head& head, const CompressionParams& p, int t) {
  if (t >= s.num_slots - std::max(p.window, p.recent) || t < p.sinks) return true;
  const int position = head.position[t];
  if (!p.protect_prompt || position >= s.prompt_len) return false;
  if (s.prompt_len <= p.budget / 2) return true;
  return position < p.budget / 4 || position >= s.prompt_len - p.budget / 4;
}

// F, with +inf for protected slots. Not for random.
inline Row combine(const Sequence& s, const Head& head, const CompressionParams& p, const Row* scores, const Row* r) {
  Row f(s.num_slots, 0.0);
  for (int t = 0; t < s.num_slots; ++t) {
    const double score = scores != nullptr ? (*scores)[t] : 0;
    if (r == nullptr) {
      f[t] = score;
    } else if (p.combine == ScoreCombine::kLog) {
      f[t] = p.lambda * std::log(s.num_slots * score + 0.001) -
             (1.0 - p.lambda) * std::log(std::max(s.num_slots * (*r)[t], 1e-30));
    } else {
      f[t] = p.lambda * score - (1.0 - p.lambda) * (*r)[t];
    }
    if (is_protected(s, head, p, t)) f[t] = std::numeric_limits<double>::infinity();
  }
  return f;
}

// What selection ranks when blocks stay or go whole.
inline Row block_means(const Row& f, int block_size) {
  const double inf = std::numeric_limits<double>::infinity();
  Row out(f.size());
  for (size_t begin = 0; begin < f.size(); begin += block_size) {
    const size_t end = std::min(begin + block_size, f.size());
    double mean = 0;
    bool has_protected = false;
    for (size_t t = begin; t < end; ++t) {
      has_protected = has_protected || f[t] == inf;
      mean += f[t] / static_cast<double>(end - begin);
    }
    for (size_t t = begin; t < end; ++t) out[t] = f[t] == inf ? inf : has_protected ? 1e30 : mean;
  }
  return out;
}

// The budget's slots of highest F, newer first among equals, ascending.
inline std::vector<int> select(const Row& f, int budget) {
  std::vector<int> order(f.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](int a, int b) { return f[a] != f[b] ? f[a] > f[b] : a > b; });
  order.resize(static_cast<size_t>(budget));
  std::sort(order.begin(), order.end());
  return order;
}

// Every stage for one head.
struct HeadResult {
  Row scores, final_scores, tolerance;  // S, F, and how far F may be off in fp32
  std::vector<int> kept;
};

inline HeadResult compress_head(const Sequence& s, int layer, int kv_head, const CompressionParams& p, int block_size) {
  const Head& head = s.heads[layer][kv_head];
  HeadResult out;
  out.tolerance.assign(s.num_slots, 1e-6);
  if (p.attention) {
    out.scores = window_scores(s, layer, kv_head);
    if (p.value_norms) weigh_by_values(head, out.scores);
    carry(s, head, p.carry, p.decay, out.scores);
    if (p.pool > 1) out.scores = pool(s, out.scores, p.pool);
    for (int t = 0; t < s.num_slots; ++t) {
      const double size = p.scope == RedundancyScope::kOff  ? out.scores[t]
                          : p.combine == ScoreCombine::kLog ? p.lambda
                                                            : p.lambda * out.scores[t];
      out.tolerance[t] += 3e-5 * size;
    }
  }
  Redundancy r;
  if (p.scope != RedundancyScope::kOff) {
    r = redundancy(s, head, p, 2e-6);
    for (int t = 0; t < s.num_slots; ++t) {
      const double relative =
          p.combine == ScoreCombine::kLog ? 1e-5 + r.log_slack[t] : r.value[t] * (1e-5 + std::expm1(r.log_slack[t]));
      out.tolerance[t] += 1e-9 - 1e-6 + (1 - p.lambda) * relative;
    }
  }
  out.final_scores =
      combine(s, head, p, p.attention ? &out.scores : nullptr, p.scope != RedundancyScope::kOff ? &r.value : nullptr);
  out.kept = select(p.whole_blocks ? block_means(out.final_scores, block_size) : out.final_scores, p.budget);
  return out;
}

}  // namespace zipage::test::oracle
