// One request inside the engine: its tokens, where its KV lies, and what may happen to it next.
//
// Tokens and slots of a sequence (half-open ranges; L = tokens.size() + num_pending):
//
//   tokens    [0 ........ num_prompt ......................... L)          known or being sampled
//   computed  [0 ..................... num_computed)                       their KV has been launched
//   slots     [0 .. num_scored .. num_resident)                            in `blocks`, block_size a block
//
// Never compressed: num_resident == num_computed, num_scored == 0. After a compression: num_resident = num_scored =
// budget. `blocks` are owned by the sequence (one share each); whoever moves it to kFinished or preempts it releases
// them.
//
// Thread-safety: the engine's thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/ids.h"
#include "sample/thinking_budget.h"
#include "sample/token_history.h"
#include "zipage/compression.h"
#include "zipage/request.h"

namespace zipage {

enum class SequenceState : uint8_t {
  kWaiting,      // no KV: new, or preempted to be recomputed
  kRunning,      // in the step batch whenever it is scheduled
  kCompressing,  // out of the batch; the compression lane works on its blocks
  kSwapped,      // KV in host memory
  kFinished,
};
// kWaiting -> kRunning | kFinished
// kRunning -> kWaiting | kSwapped | kCompressing | kFinished
// kCompressing -> kRunning | kFinished
// kSwapped -> kRunning | kFinished
bool may_become(SequenceState from, SequenceState to);
const char* name(SequenceState state);

struct Sequence {
  SequenceId id;
  Request request;
  CompressionParams compression;
  SequenceState state = SequenceState::kWaiting;

  std::vector<int32_t> tokens;  // prompt, then output
  int num_prompt = 0;
  int num_forced = 0;   // output tokens given with the request
  int num_pending = 0;  // tokens being sampled by launched steps
  int pending_row = 0;  // where the last launched step samples the newest of them
  int num_computed = 0;
  int num_resident = 0;
  int num_scored = 0;
  std::vector<BlockId> blocks;
  std::optional<QuerySlotId> query_slot;
  std::vector<int> swap_blocks;  // host blocks, as many as resident ones, while kSwapped; -1: made up
  int swap_ring = -1;

  uint64_t prefix_root = 0, prefix_chain = 0;
  int num_published = 0;  // leading blocks offered to the prefix cache
  bool use_prefix_cache = true;
  bool needs_sampled_tokens = false;  // what is sampled next depends on the text sampled before

  // What has been computed of it before, for statistics: recomputation is no prefix hit, prompt tokens count once.
  int max_computed = 0;
  int num_cached_tokens = -1;  // of the first admission
  KvStats stats;
  std::chrono::steady_clock::time_point arrived, first_scheduled, first_token, last_token;
  std::unique_ptr<TokenHistory> history;  // where penalties need it
  std::optional<ThinkingBudget> thinking;
  uint64_t sampling_seed = 0;
  std::vector<std::optional<TokenLogprobs>> prompt_logprobs;  // until the first output is reported
  int num_reported = 0;                                       // output tokens that the sink has seen
  // It has ended, but the compression lane still works on its blocks.
  struct End {
    FinishReason reason;
    Status error;
  };
  std::optional<End> end_after_compression;
  bool prompt_compressed = false;  // the compression after the prompt is done

  int length() const { return static_cast<int>(tokens.size()) + num_pending; }
  int num_output() const { return static_cast<int>(tokens.size()) - num_prompt; }
  // Tokens that can be computed next. The last token that max_tokens allows is never computed: nobody asks what
  // follows.
  int num_uncomputed() const {
    const bool at_end = length() - num_prompt >= request.sampling.max_tokens;
    return length() - num_computed - (at_end ? 1 : 0);
  }
  bool holds_kv() const { return state == SequenceState::kRunning || state == SequenceState::kCompressing; }
  void become(SequenceState next);
};

// ---- when a sequence must be compressed (docs/compression.md)
// --------------------------------------------------------

// Blocks of a compressed sequence: (budget + slack) / b. REQUIRES: compression enabled.
int max_compressed_blocks(const CompressionParams& params, int block_size);

// The number of resident tokens at which the sequence is compressed next, or INT_MAX when it never is:
// a prompt longer than the budget right after its prefill, else when its N_max blocks are full.
int compression_trigger(const Sequence& sequence);

// Makes the sequence one that has come so far and was swapped out, over made-up KV.
void make_up_beginning(Sequence& sequence, int num_computed, int block_size);

// The most blocks that the sequence can need at one time, were it alone: a prompt's prefill, or N_max, or all it says.
int peak_blocks(int num_prompt, int max_tokens, const CompressionParams& params, int block_size);

}  // namespace zipage
