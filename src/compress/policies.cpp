// The eight presets of zipage/compression.h, how options override them, and what may be combined with what.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>

#include "base/check.h"
#include "zipage/compression.h"

namespace zipage {
namespace {

constexpr std::array<std::string_view, 8> kPolicyNames = {"content", "zipage",    "rkv",  "snapkv",
                                                          "h2o",     "streaming", "page", "random"};

// Attention scores alone: no stage but the first, nothing protected but the window.
CompressionParams bare() {
  CompressionParams p;
  p.carry = ScoreCarry::kOff;
  p.pool = 1;
  p.scope = RedundancyScope::kOff;
  p.keys = RedundancyKeys::kRotated;
  return p;
}

CompressionParams zipage_preset() {
  CompressionParams p;
  p.carry = ScoreCarry::kMax;
  p.decay = 0.8F;
  p.pool = 5;
  p.scope = RedundancyScope::kLightning;
  p.keys = RedundancyKeys::kRotated;
  p.lambda = 0.2F;
  return p;
}

// Five eighths in whole 64s, two thirds at most: 256 of 384, 320 of 512 (docs/policies.md).
int content_recent(int budget) {
  return std::min((budget * 5 / 8 + 63) / 64 * 64, budget * 2 / 3);
}

CompressionParams preset(KvPolicy policy, int budget) {
  switch (policy) {
    case KvPolicy::kContent: {
      CompressionParams p = zipage_preset();
      p.scope = RedundancyScope::kMean;
      p.keys = RedundancyKeys::kContent;
      p.value_norms = true;
      p.combine = ScoreCombine::kLog;
      p.lambda = 0.06F;
      p.decay = 0.3F;
      p.recent = content_recent(budget);
      p.query_stride = 4;
      return p;
    }
    case KvPolicy::kZipage:
      return zipage_preset();
    case KvPolicy::kRkv: {
      CompressionParams p = zipage_preset();
      p.scope = RedundancyScope::kExact;
      p.carry = ScoreCarry::kOff;
      return p;
    }
    case KvPolicy::kSnapKv: {
      CompressionParams p = bare();
      p.pool = 5;
      return p;
    }
    case KvPolicy::kH2o: {
      CompressionParams p = bare();
      p.carry = ScoreCarry::kSum;
      p.decay = 1.0F;
      return p;
    }
    case KvPolicy::kStreaming: {
      CompressionParams p = bare();
      p.attention = false;
      p.sinks = 4;
      p.recent = budget - p.sinks;
      return p;
    }
    case KvPolicy::kPage: {
      CompressionParams p = bare();
      p.carry = ScoreCarry::kMax;
      p.protect_prompt = true;
      p.whole_blocks = true;
      return p;
    }
    case KvPolicy::kRandom: {
      CompressionParams p = bare();
      p.attention = false;
      p.random = true;
      return p;
    }
  }
  ZIPAGE_CHECK(false, "KvPolicy {} has no preset", static_cast<int>(policy));
}

template <typename T>
void override_with(const std::optional<T>& option, T& value) {
  if (option) value = *option;
}

template <typename... Args>
Status refuse(std::string_view flag, fmt::format_string<Args...> format, Args&&... args) {
  return invalid_argument(fmt::format("--{} {}", flag, fmt::format(format, std::forward<Args>(args)...)))
      .with_param(std::string(flag));
}

Status validate_stages(const CompressionParams& p) {
  if (p.pool < 1 || p.pool % 2 == 0) return refuse("score-pool", "{} must be odd and at least 1 (1 = off)", p.pool);
  if (!(p.decay >= 0.0F && p.decay <= 1.0F)) return refuse("score-decay", "{} must lie in [0, 1]", p.decay);
  if (!(p.lambda >= 0.0F && p.lambda <= 1.0F)) {
    return refuse("redundancy-lambda", "{} must lie in [0, 1]", p.lambda);
  }
  if (!(p.temperature > 0.0F) || !std::isfinite(p.temperature)) {
    return refuse("redundancy-temperature", "{} must be positive", p.temperature);
  }
  if (p.sinks < 0) return refuse("kv-sinks", "{} must not be negative", p.sinks);
  if (p.recent < 0) return refuse("kv-recent", "{} must not be negative", p.recent);
  return {};
}

// Slots that stage 6 can protect at most: a protected prompt takes budget/2, and sinks lie in its first half of that.
int most_protected(const CompressionParams& p) {
  const int newest = p.newest_kept();
  const int oldest = p.protect_prompt ? std::max(p.sinks, p.budget / 4) + p.budget / 4 : p.sinks;
  return newest + oldest;
}

}  // namespace

CompressionParams resolve(const CompressionOptions& o) {
  CompressionParams p = preset(o.kv_policy, o.kv_budget);
  p.budget = o.kv_budget;
  p.slack = o.kv_slack;
  p.window = o.query_window;
  p.when = o.kv_compress;
  // Streaming is "everything that is not a sink is recent": more sinks make room for themselves.
  if (o.kv_policy == KvPolicy::kStreaming && o.kv_sinks) p.recent = o.kv_budget - *o.kv_sinks;
  // A window that reached back beyond the last compression would need queries that nobody recorded.
  p.query_stride = std::clamp(o.kv_slack / std::max(o.query_window, 1), 1, p.query_stride);
  override_with(o.query_stride, p.query_stride);
  override_with(o.protect_prompt, p.protect_prompt);
  override_with(o.kv_sinks, p.sinks);
  override_with(o.kv_recent, p.recent);
  override_with(o.redundancy, p.scope);
  override_with(o.redundancy_keys, p.keys);
  override_with(o.score_combine, p.combine);
  override_with(o.redundancy_lambda, p.lambda);
  override_with(o.redundancy_temperature, p.temperature);
  override_with(o.value_norms, p.value_norms);
  override_with(o.score_decay, p.decay);
  override_with(o.score_pool, p.pool);
  return p;
}

Status validate(const CompressionParams& p, int block_size) {
  const int b = block_size;
  if (p.budget < 0) return refuse("kv-budget", "{} must not be negative (0 = keep all)", p.budget);
  if (p.budget == 0) return {};
  if (p.budget % b != 0) {
    const int below = p.budget / b * b;
    return below == 0 ? refuse("kv-budget", "{} is not a multiple of --block-size {}; the least is {}", p.budget, b, b)
                      : refuse("kv-budget", "{} is not a multiple of --block-size {}; the nearest are {} and {}",
                               p.budget, b, below, below + b);
  }
  if (p.slack < b || p.slack % b != 0) {
    return refuse("kv-slack", "{} must be a positive multiple of --block-size {}", p.slack, b);
  }
  if (p.window < 1 || p.window > b) {
    return refuse("query-window", "{} must lie in [1, {}], the block size", p.window, b);
  }
  if (p.query_stride < 1 || p.query_stride > p.slack / p.window) {
    return refuse("query-stride", "{} must lie in [1, {}]: --kv-slack {} has room for so many between {} queries",
                  p.query_stride, p.slack / p.window, p.slack, p.window);
  }
  ZIPAGE_RETURN_IF_ERROR(validate_stages(p));
  if (most_protected(p) > p.budget) {
    const std::string_view flag = p.recent > p.window ? "kv-recent" : p.sinks > 0 ? "kv-sinks" : "protect-prompt";
    return refuse(flag, "protects too much: the newest {} tokens{}{} do not fit into --kv-budget {}", p.newest_kept(),
                  p.sinks > 0 ? fmt::format(", {} sinks", p.sinks) : "",
                  p.protect_prompt ? fmt::format(", a prompt of up to {}", p.budget / 2) : "", p.budget);
  }
  return {};
}

std::string_view name(KvPolicy policy) {
  return kPolicyNames[static_cast<size_t>(policy)];
}

std::optional<KvPolicy> kv_policy_from_name(std::string_view name) {
  for (size_t i = 0; i < kPolicyNames.size(); ++i) {
    if (kPolicyNames[i] == name) return static_cast<KvPolicy>(i);
  }
  return std::nullopt;
}

std::span<const std::string_view> kv_policy_names() {
  return kPolicyNames;
}

}  // namespace zipage
