#include "engine/sequence.h"

#include <algorithm>
#include <limits>

#include "base/check.h"

namespace zipage {

const char* name(SequenceState state) {
  switch (state) {
    case SequenceState::kWaiting:
      return "waiting";
    case SequenceState::kRunning:
      return "running";
    case SequenceState::kCompressing:
      return "compressing";
    case SequenceState::kSwapped:
      return "swapped";
    case SequenceState::kFinished:
      return "finished";
  }
  return "?";
}

bool may_become(SequenceState from, SequenceState to) {
  using enum SequenceState;
  switch (from) {
    case kWaiting:
      return to == kRunning || to == kFinished;
    case kRunning:
      return to != kRunning;
    case kCompressing:
      return to == kRunning || to == kFinished;
    case kSwapped:
      return to == kRunning || to == kFinished;
    case kFinished:
      return false;
  }
  return false;
}

void Sequence::become(SequenceState next) {
  ZIPAGE_CHECK(may_become(state, next), "sequence {} is {} and cannot become {}", id.value(), name(state), name(next));
  state = next;
}

int max_compressed_blocks(const CompressionParams& params, int block_size) {
  return (params.budget + params.slack) / block_size;
}

int compression_trigger(const Sequence& sequence) {
  const CompressionParams& params = sequence.compression;
  if (!params.enabled()) return std::numeric_limits<int>::max();
  // Until the prompt has been computed nothing is compressed: every prompt token attends to the whole prompt.
  if (!sequence.prompt_compressed && sequence.num_prompt > params.budget) return sequence.num_prompt;
  if (params.when == KvCompress::kPrompt) return std::numeric_limits<int>::max();
  return params.budget + params.slack;
}

void make_up_beginning(Sequence& sequence, int num_computed, int block_size) {
  const CompressionParams& params = sequence.compression;
  sequence.num_computed = sequence.num_resident = sequence.max_computed = num_computed;
  const int full = params.budget + params.slack;
  if (params.enabled() && params.when == KvCompress::kAll && num_computed > full) {
    sequence.num_scored = params.budget;
    sequence.num_resident = params.budget + (num_computed - full) % params.slack;
    sequence.prompt_compressed = true;
    sequence.stats.compressions = 1 + (num_computed - full) / params.slack;
  }
  sequence.swap_blocks.assign(static_cast<size_t>((sequence.num_resident + block_size - 1) / block_size), -1);
  sequence.become(SequenceState::kRunning);
  sequence.become(SequenceState::kSwapped);
}

int peak_blocks(int num_prompt, int max_tokens, const CompressionParams& params, int block_size) {
  const auto blocks = [block_size](int64_t tokens) { return static_cast<int>((tokens + block_size - 1) / block_size); };
  // The last token is sampled but never computed.
  const int whole = blocks(int64_t{num_prompt} + max_tokens - 1);
  if (!params.enabled()) return whole;
  const int prefill = blocks(num_prompt);
  if (params.when == KvCompress::kPrompt) {
    if (num_prompt <= params.budget) return whole;
    return std::max(prefill, blocks(int64_t{params.budget} + max_tokens - 1));
  }
  return std::max(prefill, std::min(whole, max_compressed_blocks(params, block_size)));
}

}  // namespace zipage
