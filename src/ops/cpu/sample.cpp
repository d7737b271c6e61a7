// sample: the filters top_k, top_p and min_p each come down to a least logit, so nothing is ever sorted whole.
#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "ops/cpu/cpu_backend.h"
#include "ops/cpu/logit_row.h"

namespace zipage::cpu {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
constexpr float kGreedyTemperature = 1e-5F;

void apply_mask_and_bias(const SampleParams& params, int64_t row, float* x) {
  if (params.allowed != nullptr && (params.use_allowed == nullptr || params.use_allowed[row] != 0)) {
    const uint32_t* mask = params.allowed + row * ((params.vocab + 31) / 32);
    for (int i = 0; i < params.vocab; ++i) {
      if ((mask[i / 32] >> (i % 32) & 1U) == 0) x[i] = kMinusInfinity;
    }
  }
  if (params.bias_start == nullptr) return;
  for (int32_t i = params.bias_start[row]; i < params.bias_start[row + 1]; ++i) {
    const int32_t id = params.bias_ids[i];
    if (id >= 0 && id < params.vocab) x[id] += params.bias_values[i];
  }
}

void apply_penalties(const SampleParams& params, int64_t row, float* x) {
  if (params.history_start == nullptr) return;
  const float repetition = params.repetition_penalty == nullptr ? 1.0F : params.repetition_penalty[row];
  const float presence = params.presence_penalty == nullptr ? 0.0F : params.presence_penalty[row];
  const float frequency = params.frequency_penalty == nullptr ? 0.0F : params.frequency_penalty[row];
  for (int32_t i = params.history_start[row]; i < params.history_start[row + 1]; ++i) {
    const int32_t id = params.history_ids[i];
    if (id < 0 || id >= params.vocab || x[id] == kMinusInfinity) continue;
    x[id] = x[id] > 0 ? x[id] / repetition : x[id] * repetition;
    const int32_t count = params.history_counts[i];
    if (count > 0) x[id] -= presence + frequency * static_cast<float>(count);
  }
}

// The least logit (divided by the temperature, relative to the largest) that top_k, top_p and min_p leave.
float least_kept(const SampleParams& params, int64_t row, LogitRow& logits) {
  const int top_k = params.top_k == nullptr ? 0 : params.top_k[row];
  const float top_p = params.top_p == nullptr ? 1.0F : params.top_p[row];
  const float min_p = params.min_p == nullptr ? 0.0F : params.min_p[row];
  float least = kMinusInfinity;
  if (top_k > 0 && top_k < logits.size()) least = logits.kth_largest(top_k);
  if (top_p < 1.0F) least = std::max(least, logits.least_of_share(static_cast<double>(top_p), least));
  if (min_p > 0.0F) least = std::max(least, std::log(min_p));
  return std::min(least, 0.0F);
}

int32_t sample_row(const SampleParams& params, int64_t row, LogitRow& logits) {
  logits.load(static_cast<const float*>(params.logits.data) + row * params.logits.stride);
  apply_mask_and_bias(params, row, logits.values());
  apply_penalties(params, row, logits.values());
  logits.index();
  const float temperature = params.temperature == nullptr ? 0.0F : params.temperature[row];
  if (!(temperature > kGreedyTemperature)) return logits.first_largest();
  if (logits.largest() == kMinusInfinity) return -1;
  logits.normalise(1.0F / temperature);
  return logits.draw(sample_noise_key(params.seed[row], params.position[row]), least_kept(params, row, logits));
}

}  // namespace

void CpuBackend::sample(Queue& queue, const SampleParams& params) {
  ZIPAGE_CHECK(params.logits.dtype == DType::kF32 && params.vocab <= params.logits.cols, "sample: {} ids of {} logits",
               params.vocab, params.logits.cols);
  const Kernels& kernel = kernels(isa_);
  Executor& threads = executor(queue);
  threads.parallel_for(params.logits.rows, 1, [&](int64_t begin, int64_t end, int thread) {
    LogitRow logits(kernel, params.vocab, threads.scratch(thread, LogitRow::workspace_bytes(params.vocab)));
    for (int64_t row = begin; row < end; ++row) params.out_token[row] = sample_row(params, row, logits);
  });
}

}  // namespace zipage::cpu
