// What the engine asks of a model: the seam between deciding and computing. Runner is the real one; tests script
// another.
//
// Whatever is launched (batches, swaps, inline compressions) takes effect in the order of the calls. On an asynchronous
// device the calls return before.
//
// Thread-safety: one thread; a job of compression() may run on another.
// Errors: a device failure throws DeviceError, at the call or at a later one.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "compress/compress.h"
#include "engine/batch.h"
#include "engine/memory_plan.h"
#include "sample/sampling_batch.h"

namespace zipage {

struct SampledTokens {
  std::vector<int32_t> tokens;          // [num_sampled]; -1: no finite logit
  std::vector<TokenLogprobs> logprobs;  // [num_sampled + scored] when any row asked for them, else empty
  double device_seconds = 0;            // that the batch took
  double compression_seconds = 0;       // that compressions in order took between the batch before and this one
  double idle_seconds = 0;              // of the device, from the batch before to this one
};

class ModelRunner {
 public:
  virtual ~ModelRunner() = default;
  virtual const MemoryPlan& plan() const = 0;

  // Computes every token of the batch, stores K and V, records the window's queries, and samples. A token id below 0
  // stands for the token that row -1 - id of the batch launched before has sampled. `top_logprobs`: -1 = no
  // log-probabilities. Nothing of the arguments is looked at after the call.
  // REQUIRES: at most one launched batch is not collected
  virtual void launch(const StepBatch& batch, const SamplingBatch& sampling, int top_logprobs) = 0;
  // What the batch sampled that was launched first of those not collected; blocks until it is done.
  virtual SampledTokens collect() = 0;
  // Forgets what was launched and not collected: after an error.
  virtual void abandon() = 0;

  // The compression of a sequence as a job, which works on what everything launched so far leaves. `in_lane`: on the
  // low-priority queue, beside what is launched later; it blocks until it is done. Else in order, before what is
  // launched later. To be called while `plan` and the sequence's blocks are what they are.
  virtual std::function<void()> compression(const Sequence& sequence, const CompressionPlan& plan, bool in_lane) = 0;

  virtual void swap_blocks(std::span<const int32_t> blocks, std::span<const int32_t> host_blocks, bool to_host) = 0;
  virtual void swap_ring(int query_slot, int host_ring, bool to_host) = 0;
  virtual int64_t swap_bytes_per_block() const = 0;
};

}  // namespace zipage
