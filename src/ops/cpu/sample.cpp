// sample and logprobs. The filters top_k, top_p and min_p each come down to a least logit, so nothing is ever sorted
// whole.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/check.h"
#include "ops/cpu/cpu_backend.h"
#include "ops/cpu/kernels.h"
#include "ops/sample_noise.h"

namespace zipage::cpu {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
constexpr float kGreedyTemperature = 1e-5F;

// Copies a row, NaN and +inf as -inf.
void copy_finite(const float* logits, int vocab, float* out) {
  for (int i = 0; i < vocab; ++i) out[i] = std::isfinite(logits[i]) ? logits[i] : kMinusInfinity;
}

int argmax(const float* x, int n) {
  int best = -1;
  float value = kMinusInfinity;
  for (int i = 0; i < n; ++i) {
    if (x[i] > value) {
      value = x[i];
      best = i;
    }
  }
  return best;
}

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

// The least value that is kept when the k largest are; ties with it are kept. Reorders x.
float kth_largest(float* x, int n, int k) {
  std::nth_element(x, x + k - 1, x + n, std::greater<float>());
  return x[k - 1];
}

// The least value of the smallest set of largest values whose weights exp(x - largest) reach `share` of all. Reorders
// x.
float least_of_share(float* x, int n, float largest, double share) {
  double wanted = 0;
  for (int i = 0; i < n; ++i) wanted += std::exp(static_cast<double>(x[i] - largest));
  wanted *= share;
  // [begin, end) holds the boundary: everything before begin is in, its weight is taken off `wanted`.
  float* begin = x;
  float* end = x + n;
  while (end - begin > 1) {
    float* middle = begin + (end - begin) / 2;
    std::nth_element(begin, middle, end, std::greater<float>());
    double upper = 0;
    for (float* p = begin; p < middle; ++p) upper += std::exp(static_cast<double>(*p - largest));
    if (upper >= wanted) {
      end = middle;
    } else {
      wanted -= upper;
      begin = middle;
    }
  }
  return *begin;
}

// The least logit (already divided by the temperature) that top_k, top_p and min_p leave.
float least_kept(const SampleParams& params, int64_t row, const float* x, float largest, float* work) {
  const int vocab = params.vocab;
  const int top_k = params.top_k == nullptr ? 0 : params.top_k[row];
  const float top_p = params.top_p == nullptr ? 1.0F : params.top_p[row];
  const float min_p = params.min_p == nullptr ? 0.0F : params.min_p[row];
  float least = kMinusInfinity;
  if (top_k > 0 && top_k < vocab) {
    std::copy_n(x, vocab, work);
    least = kth_largest(work, vocab, top_k);
  }
  if (top_p < 1.0F) {
    int count = 0;
    for (int i = 0; i < vocab; ++i) {
      if (x[i] >= least && x[i] != kMinusInfinity) work[count++] = x[i];
    }
    least = std::max(least, least_of_share(work, count, largest, static_cast<double>(top_p)));
  }
  if (min_p > 0.0F) least = std::max(least, largest + std::log(min_p));
  return std::min(least, largest);
}

int32_t draw(const SampleParams& params, int64_t row, const float* x, float least) {
  const SampleNoiseKey key = sample_noise_key(params.seed[row], params.position[row]);
  int32_t best = -1;
  float value = kMinusInfinity;
  for (int i = 0; i < params.vocab; ++i) {
    if (!(x[i] >= least) || x[i] == kMinusInfinity || x[i] + kSampleNoiseLargest < value) continue;
    const float u = sample_noise_uniform(sample_noise_bits(key, static_cast<uint32_t>(i)));
    const float noisy = x[i] - std::log(-std::log1p(-u));
    if (noisy > value) {
      value = noisy;
      best = i;
    }
  }
  return best;
}

int32_t sample_row(const SampleParams& params, int64_t row, float* x, float* work) {
  const int vocab = params.vocab;
  copy_finite(static_cast<const float*>(params.logits.data) + row * params.logits.stride, vocab, x);
  apply_mask_and_bias(params, row, x);
  apply_penalties(params, row, x);
  const int best = argmax(x, vocab);
  const float temperature = params.temperature == nullptr ? 0.0F : params.temperature[row];
  if (best < 0 || !(temperature > kGreedyTemperature)) return best;
  const float largest = x[best];
  // Relative to the largest, so that no division overflows.
  for (int i = 0; i < vocab; ++i) x[i] = (x[i] - largest) / temperature;
  return draw(params, row, x, least_kept(params, row, x, 0.0F, work));
}

}  // namespace

void CpuBackend::sample(Queue& queue, const SampleParams& params) {
  ZIPAGE_CHECK(params.logits.dtype == DType::kF32 && params.vocab <= params.logits.cols, "sample: {} ids of {} logits",
               params.vocab, params.logits.cols);
  const size_t bytes = static_cast<size_t>(params.vocab) * sizeof(float) * 2;
  Executor& threads = executor(queue);
  threads.parallel_for(params.logits.rows, 1, [&](int64_t begin, int64_t end, int thread) {
    auto* x = reinterpret_cast<float*>(threads.scratch(thread, bytes));
    for (int64_t row = begin; row < end; ++row) params.out_token[row] = sample_row(params, row, x, x + params.vocab);
  });
}

void CpuBackend::logprobs(Queue& queue, const LogprobsParams& params) {
  ZIPAGE_CHECK(params.logits.dtype == DType::kF32 && params.vocab <= params.logits.cols,
               "logprobs: {} ids of {} logits", params.vocab, params.logits.cols);
  ZIPAGE_CHECK(params.top_n >= 0 && params.top_n <= params.vocab, "logprobs: the {} best of {}", params.top_n,
               params.vocab);
  const Kernels& kernel = kernels(isa_);
  const int vocab = params.vocab;
  const size_t bytes = static_cast<size_t>(vocab) * (sizeof(float) + sizeof(int32_t));
  Executor& threads = executor(queue);
  threads.parallel_for(params.logits.rows, 1, [&](int64_t begin, int64_t end, int thread) {
    auto* x = reinterpret_cast<float*>(threads.scratch(thread, bytes));
    auto* ids = reinterpret_cast<int32_t*>(x + vocab);
    for (int64_t row = begin; row < end; ++row) {
      copy_finite(static_cast<const float*>(params.logits.data) + row * params.logits.stride, vocab, x);
      const int best = argmax(x, vocab);
      const float largest = best < 0 ? 0.0F : x[best];
      const double log_sum = best < 0 ? 0.0 : std::log(kernel.exp_sum(x, largest, vocab));
      const auto logprob = [&](int32_t id) {
        return x[id] == kMinusInfinity ? kMinusInfinity
                                       : static_cast<float>(static_cast<double>(x[id] - largest) - log_sum);
      };
      const auto likelier = [x](int32_t a, int32_t b) { return x[a] > x[b] || (x[a] == x[b] && a < b); };
      const int32_t chosen = params.chosen == nullptr ? -1 : params.chosen[row];
      if (chosen >= 0 && chosen < vocab) {
        if (params.out_chosen != nullptr) params.out_chosen[row] = logprob(chosen);
        int32_t rank = 1;
        for (int32_t id = 0; id < vocab; ++id) rank += likelier(id, chosen) ? 1 : 0;
        if (params.out_rank != nullptr) params.out_rank[row] = rank;
      }
      if (params.top_n == 0) continue;
      for (int32_t id = 0; id < vocab; ++id) ids[id] = id;
      std::partial_sort(ids, ids + params.top_n, ids + vocab, likelier);
      for (int i = 0; i < params.top_n; ++i) {
        params.out_top_ids[row * params.top_n + i] = ids[i];
        params.out_top[row * params.top_n + i] = logprob(ids[i]);
      }
    }
  });
}

}  // namespace zipage::cpu
