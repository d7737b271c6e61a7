#include "sample/sampling_batch.h"

#include <algorithm>
#include <limits>

namespace zipage {

void SamplingBatch::clear() {
  *this = SamplingBatch(vocab);
}

uint32_t* SamplingBatch::mask_of_last_row() {
  const size_t rows_now = temperature.size();
  allowed.resize(rows_now * mask_words, 0);
  return allowed.data() + (rows_now - 1) * mask_words;
}

void SamplingBatch::add(const SamplingParams& params, uint64_t row_seed, int64_t row_position,
                        const TokenHistory* history, std::span<const int32_t> forbidden, std::optional<int32_t> only,
                        TokenConstraint* constraint) {
  temperature.push_back(params.temperature);
  top_p.push_back(params.top_p);
  min_p.push_back(params.min_p);
  top_k.push_back(params.top_k);
  repetition_penalty.push_back(params.repetition_penalty);
  presence_penalty.push_back(params.presence_penalty);
  frequency_penalty.push_back(params.frequency_penalty);
  seed.push_back(row_seed);
  position.push_back(row_position);

  if (history != nullptr && has_penalties(params)) {
    history_ids.insert(history_ids.end(), history->ids().begin(), history->ids().end());
    history_counts.insert(history_counts.end(), history->counts().begin(), history->counts().end());
  }
  history_start.push_back(static_cast<int32_t>(history_ids.size()));

  for (const auto& [token, bias] : params.logit_bias) {
    bias_ids.push_back(token);
    bias_values.push_back(std::clamp(bias, -100.0F, 100.0F));
  }
  for (int32_t token : forbidden) {
    bias_ids.push_back(token);
    bias_values.push_back(-std::numeric_limits<float>::infinity());
  }
  bias_start.push_back(static_cast<int32_t>(bias_ids.size()));

  bool masked = false;
  if (only) {
    mask_of_last_row()[*only / 32] = 1U << (*only % 32);
    masked = true;
  } else {
    if (constraint != nullptr) masked = constraint->fill_mask(mask_of_last_row(), vocab);
    if (!params.allowed_token_ids.empty()) {
      uint32_t* mask = mask_of_last_row();
      std::vector<uint32_t> listed(mask_words, 0);
      for (int32_t token : params.allowed_token_ids) listed[static_cast<size_t>(token) / 32] |= 1U << (token % 32);
      for (size_t i = 0; i < mask_words; ++i) mask[i] = masked ? mask[i] & listed[i] : listed[i];
      masked = true;
    }
  }
  use_allowed.push_back(masked ? 1 : 0);
  // Rows after a masked one need their place in the array too.
  if (!allowed.empty()) allowed.resize(temperature.size() * mask_words, 0);
}

}  // namespace zipage
