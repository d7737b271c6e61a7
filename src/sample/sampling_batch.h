// The sampled rows of one step as arrays, one row a sequence, in the order they are added (ops/ops.h: SampleParams).
//
// Thread-safety: one thread.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "sample/token_history.h"
#include "zipage/request.h"

namespace zipage {

struct SamplingBatch {
  explicit SamplingBatch(int vocab_size) : vocab(vocab_size), mask_words(static_cast<size_t>(vocab_size + 31) / 32) {}

  void clear();
  // `forbidden` ids are never sampled. `history` may be null when the row has no penalties. `only`: when set, the one
  // token that may come next. `constraint`: null or asked for its mask.
  void add(const SamplingParams& params, uint64_t seed, int64_t position, const TokenHistory* history,
           std::span<const int32_t> forbidden, std::optional<int32_t> only, TokenConstraint* constraint);
  int rows() const { return static_cast<int>(temperature.size()); }

  int vocab;
  size_t mask_words;
  std::vector<float> temperature, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty;
  std::vector<int32_t> top_k;
  std::vector<uint64_t> seed;
  std::vector<int64_t> position;
  std::vector<int32_t> history_start{0}, history_ids, history_counts;
  std::vector<int32_t> bias_start{0}, bias_ids;
  std::vector<float> bias_values;
  std::vector<uint32_t> allowed;     // [rows, mask_words]; empty while no row has a mask
  std::vector<uint8_t> use_allowed;  // [rows]

  static bool has_penalties(const SamplingParams& params) {
    return params.repetition_penalty != 1.0F || params.presence_penalty != 0.0F || params.frequency_penalty != 0.0F;
  }

 private:
  uint32_t* mask_of_last_row();
};

}  // namespace zipage
