// What the engine asks of a model: the seam between deciding and computing. Runner is the real one; tests script
// another.
//
// Thread-safety: one thread, except compress(), which a CompressionLane's thread calls for jobs of its own.
// Errors: a device failure throws DeviceError.
#pragma once

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
};

class ModelRunner {
 public:
  virtual ~ModelRunner() = default;
  virtual const MemoryPlan& plan() const = 0;

  // Computes every token of the batch and stores K and V; records the window's queries.
  virtual void forward(const StepBatch& batch) = 0;
  // Of the last batch's rows. `top_logprobs`: -1 = no log-probabilities.
  virtual SampledTokens sample(const StepBatch& batch, const SamplingBatch& sampling, int top_logprobs) = 0;

  // The job of a compression; valid while `plan` and the sequence's blocks are.
  virtual CompressionJob compression_job(const Sequence& sequence, const CompressionPlan& plan) const = 0;
  // Blocks until done. `in_lane`: on the low-priority queue, beside the batch; else between batches.
  virtual void compress(const CompressionJob& job, bool in_lane) = 0;

  virtual void swap_blocks(std::span<const int32_t> blocks, std::span<const int32_t> host_blocks, bool to_host) = 0;
  virtual void swap_ring(int query_slot, int host_ring, bool to_host) = 0;
  virtual int64_t swap_bytes_per_block() const = 0;
};

}  // namespace zipage
