// Runs many requests through one LLM: keeps it fed without queueing everything, hands results over on the caller's
// thread, ends early and cleanly on Ctrl-C.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "progress.h"
#include "zipage/llm.h"

namespace zipage::apps {

struct BatchResult {
  Status error;                    // refused at submission, or failed in the engine
  std::string text;                // the whole output
  std::vector<int32_t> token_ids;  // the whole output
  std::vector<TokenLogprobs> logprobs;
  std::vector<std::optional<TokenLogprobs>> prompt_logprobs;
  TextOutput last;  // the final piece: finish reason, counts, KV statistics
};

struct Batch {
  size_t size = 0;
  // Makes the i-th request; an error becomes its result. Called in order, on the caller's thread.
  std::function<Result<TextRequest>(size_t index)> make;
  // The i-th request is done; in the order of completion. Not called for requests that an interrupt ended.
  std::function<void(size_t index, BatchResult&& result)> done;
  // Text of the i-th request as it comes; may be empty.
  std::function<void(size_t index, const std::string& delta)> delta;
};

struct BatchSummary {
  size_t succeeded = 0, failed = 0;
  int64_t output_tokens = 0;
  double seconds = 0;
  bool interrupted = false;
};

// REQUIRES: an InterruptGuard lives.
BatchSummary run_batch(LLM& llm, const Batch& batch, Progress& progress);

}  // namespace zipage::apps
