#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/check.h"
#include "model/model_config.h"

namespace zipage {
namespace {

std::vector<double> plain_frequencies(double theta, int rotary_dim) {
  std::vector<double> frequencies(static_cast<size_t>(rotary_dim / 2));
  for (size_t i = 0; i < frequencies.size(); ++i) {
    frequencies[i] = std::pow(theta, -2.0 * static_cast<double>(i) / rotary_dim);
  }
  return frequencies;
}

double yarn_mscale(double factor, double mscale) {
  return factor <= 1.0 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0;
}

RopeFrequencies yarn(const RopeConfig& rope) {
  RopeFrequencies result{plain_frequencies(rope.theta, rope.rotary_dim), 1.0};
  // The index of the pair that turns `rotations` times over the original length.
  const auto pair_with_rotations = [&](double rotations) {
    return rope.rotary_dim * std::log(rope.original_max_position_embeddings / (rotations * 2.0 * std::numbers::pi)) /
           (2.0 * std::log(rope.theta));
  };
  double low = pair_with_rotations(rope.beta_fast), high = pair_with_rotations(rope.beta_slow);
  if (rope.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, rope.rotary_dim - 1.0);
  if (low == high) high += 0.001;
  for (size_t i = 0; i < result.inv_freq.size(); ++i) {
    const double interpolated = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    result.inv_freq[i] *= interpolated / rope.factor + (1.0 - interpolated);
  }
  if (rope.attention_factor) {
    result.attention_scale = *rope.attention_factor;
  } else if (rope.mscale.value_or(0.0) != 0.0 && rope.mscale_all_dim.value_or(0.0) != 0.0) {
    result.attention_scale = yarn_mscale(rope.factor, *rope.mscale) / yarn_mscale(rope.factor, *rope.mscale_all_dim);
  } else {
    result.attention_scale = yarn_mscale(rope.factor, 1.0);
  }
  return result;
}

RopeFrequencies llama3(const RopeConfig& rope) {
  RopeFrequencies result{plain_frequencies(rope.theta, rope.rotary_dim), 1.0};
  const double original = rope.original_max_position_embeddings;
  const double longest = original / rope.low_freq_factor, shortest = original / rope.high_freq_factor;
  for (double& frequency : result.inv_freq) {
    const double wavelength = 2.0 * std::numbers::pi / frequency;
    if (wavelength > longest) {
      frequency /= rope.factor;
    } else if (wavelength >= shortest) {
      const double smooth =
          (original / wavelength - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor);
      frequency *= (1.0 - smooth) / rope.factor + smooth;
    }
  }
  return result;
}

RopeFrequencies longrope(const RopeConfig& rope, int max_model_len) {
  RopeFrequencies result{plain_frequencies(rope.theta, rope.rotary_dim), 1.0};
  const double original = rope.original_max_position_embeddings;
  const std::vector<double>& factors = max_model_len > original ? rope.long_factor : rope.short_factor;
  ZIPAGE_CHECK(factors.size() == result.inv_freq.size(), "{} longrope factors for {} frequencies", factors.size(),
               result.inv_freq.size());
  for (size_t i = 0; i < factors.size(); ++i) result.inv_freq[i] /= factors[i];
  if (rope.attention_factor) {
    result.attention_scale = *rope.attention_factor;
  } else if (rope.factor > 1.0) {
    result.attention_scale = std::sqrt(1.0 + std::log(rope.factor) / std::log(original));
  }
  return result;
}

}  // namespace

RopeFrequencies rope_frequencies(const ModelConfig& config, int max_model_len) {
  const RopeConfig& rope = config.rope;
  ZIPAGE_CHECK(rope.rotary_dim >= 2 && rope.rotary_dim % 2 == 0, "rotary_dim is {}", rope.rotary_dim);
  switch (rope.type) {
    case RopeType::kDefault:
      return {plain_frequencies(rope.theta, rope.rotary_dim), 1.0};
    case RopeType::kLinear: {
      RopeFrequencies result{plain_frequencies(rope.theta, rope.rotary_dim), 1.0};
      for (double& frequency : result.inv_freq) frequency /= rope.factor;
      return result;
    }
    case RopeType::kDynamic: {
      const double original = rope.original_max_position_embeddings;
      const double length = std::max<double>(max_model_len, original);
      const double growth = rope.factor * length / original - (rope.factor - 1.0);
      const double exponent = rope.rotary_dim / (rope.rotary_dim - 2.0);
      return {plain_frequencies(rope.theta * std::pow(growth, exponent), rope.rotary_dim), 1.0};
    }
    case RopeType::kYarn:
      return yarn(rope);
    case RopeType::kLlama3:
      return llama3(rope);
    case RopeType::kLongRope:
      return longrope(rope, max_model_len);
  }
  ZIPAGE_CHECK(false, "unknown rope type {}", static_cast<int>(rope.type));
}

std::vector<float> cos_sin_table(const ModelConfig& config, int max_model_len) {
  const RopeFrequencies rope = rope_frequencies(config, max_model_len);
  const size_t half = rope.inv_freq.size();
  std::vector<float> table(static_cast<size_t>(max_model_len) * 2 * half);
  for (size_t position = 0; position < static_cast<size_t>(max_model_len); ++position) {
    float* cosines = table.data() + position * 2 * half;
    float* sines = cosines + half;
    for (size_t i = 0; i < half; ++i) {
      const double angle = static_cast<double>(position) * rope.inv_freq[i];
      cosines[i] = static_cast<float>(std::cos(angle) * rope.attention_scale);
      sines[i] = static_cast<float>(std::sin(angle) * rope.attention_scale);
    }
  }
  return table;
}

}  // namespace zipage
