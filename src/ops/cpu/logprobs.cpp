#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "ops/cpu/cpu_backend.h"
#include "ops/cpu/logit_row.h"

namespace zipage::cpu {
namespace {

void logprobs_of_row(const Kernels& kernel, const LogprobsParams& params, int64_t row, LogitRow& logits) {
  constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
  logits.load(static_cast<const float*>(params.logits.data) + row * params.logits.stride);
  logits.index();
  const float* x = logits.values();
  const float largest = logits.largest();
  const double log_sum = largest == kMinusInfinity ? 0.0 : std::log(kernel.exp_sum(x, largest, logits.size()));
  const auto logprob = [&](int32_t id) {
    return x[id] == kMinusInfinity ? kMinusInfinity
                                   : static_cast<float>(static_cast<double>(x[id] - largest) - log_sum);
  };
  const auto likelier = [x](int32_t a, int32_t b) { return x[a] > x[b] || (x[a] == x[b] && a < b); };

  const int32_t chosen = params.chosen == nullptr ? -1 : params.chosen[row];
  if (chosen >= 0 && chosen < logits.size()) {
    if (params.out_chosen != nullptr) params.out_chosen[row] = logprob(chosen);
    int32_t rank = 1;
    for (int32_t id = 0; id < logits.size(); ++id) rank += x[id] > x[chosen] ? 1 : 0;
    for (int32_t id = 0; id < chosen; ++id) rank += x[id] == x[chosen] ? 1 : 0;
    if (params.out_rank != nullptr) params.out_rank[row] = rank;
  }
  if (params.top_n == 0) return;
  int count = 0;
  int32_t* ids = logits.ids_from(logits.kth_largest(params.top_n), count);
  std::partial_sort(ids, ids + params.top_n, ids + count, likelier);
  for (int i = 0; i < params.top_n; ++i) {
    params.out_top_ids[row * params.top_n + i] = ids[i];
    params.out_top[row * params.top_n + i] = logprob(ids[i]);
  }
}

}  // namespace

void CpuBackend::logprobs(Queue& queue, const LogprobsParams& params) {
  ZIPAGE_CHECK(params.logits.dtype == DType::kF32 && params.vocab <= params.logits.cols,
               "logprobs: {} ids of {} logits", params.vocab, params.logits.cols);
  ZIPAGE_CHECK(params.top_n >= 0 && params.top_n <= params.vocab, "logprobs: the {} best of {}", params.top_n,
               params.vocab);
  const Kernels& kernel = kernels(isa_);
  Executor& threads = executor(queue);
  threads.parallel_for(params.logits.rows, 1, [&](int64_t begin, int64_t end, int thread) {
    LogitRow logits(kernel, params.vocab, threads.scratch(thread, LogitRow::workspace_bytes(params.vocab)));
    for (int64_t row = begin; row < end; ++row) logprobs_of_row(kernel, params, row, logits);
  });
}

}  // namespace zipage::cpu
