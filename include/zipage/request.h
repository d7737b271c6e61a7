// One request to the engine, in token ids, and what comes back. Text belongs to llm.h.
//
// Thread-safety: values.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "zipage/compression.h"
#include "zipage/status.h"

namespace zipage {

struct SamplingParams {
  float temperature = 1.0F;         // >= 0; 0 and tiny values are greedy
  float top_p = 1.0F;               // (0, 1]
  int top_k = -1;                   // -1 or 0 = off
  float min_p = 0.0F;               // [0, 1]
  float repetition_penalty = 1.0F;  // > 0
  float presence_penalty = 0.0F;    // [-2, 2]
  float frequency_penalty = 0.0F;   // [-2, 2]
  std::optional<int64_t> seed;      // none: a different one each time
  int max_tokens = 16;              // >= 1; 0 = the rest of the context
  int min_tokens = 0;               // EOS and stop ids are forbidden before
  bool ignore_eos = false;
  std::vector<int32_t> stop_token_ids;
  std::vector<std::pair<int32_t, float>> logit_bias;  // clamped to [-100, 100]
  std::vector<int32_t> allowed_token_ids;             // empty = all
  std::vector<std::vector<int32_t>> bad_words;        // token sequences never completed
  std::optional<int> logprobs;                        // top-n beside the chosen token; 0 = the chosen one only
  std::optional<int> prompt_logprobs;
  std::optional<int> thinking_token_budget;  // see Request::end_thinking_token_ids
};

// Says of one request at a time which tokens may come next (a grammar). Implemented outside the engine.
// Called on the engine's thread only.
class TokenConstraint {
 public:
  virtual ~TokenConstraint() = default;
  // Sets bit i of `mask` (vocab bits, all zero at the call) where token i may come next. Returns false when every
  // token may.
  virtual bool fill_mask(uint32_t* mask, int vocab) = 0;
  virtual void accept(int32_t token) = 0;
  virtual bool finished() const = 0;           // only EOS may follow
  virtual Status error() const { return {}; }  // why no token may come, when that is no end
};

enum class FinishReason : uint8_t { kNone, kStop, kLength, kAbort, kError };
std::string_view name(FinishReason reason);

struct TokenLogprobs {
  int32_t token = 0;
  float logprob = 0;
  int rank = 0;
  std::vector<std::pair<int32_t, float>> top;  // descending
};

struct KvStats {
  int resident_tokens = 0;
  int64_t evicted_tokens = 0;  // logical length minus resident
  int compressions = 0;
  int swaps = 0;
  int preemptions = 0;
  int peak_blocks = 0;
};

// A piece of a request's result: the tokens since the last piece. The last piece has a finish reason.
struct RequestOutput {
  std::string request_id;
  std::vector<int32_t> new_token_ids;
  std::vector<TokenLogprobs> logprobs;                        // one per new token where asked for
  std::vector<std::optional<TokenLogprobs>> prompt_logprobs;  // once, on the first piece; the first token has none
  FinishReason finish_reason = FinishReason::kNone;
  std::optional<int32_t> stop_token_id;  // the id that stopped it, when one of stop_token_ids did
  Status error;                          // with kError
  int num_prompt_tokens = 0;
  int num_output_tokens = 0;
  int num_cached_tokens = 0;  // prompt tokens found in the prefix cache
  KvStats kv_stats;
  double queue_seconds = 0, prefill_seconds = 0, decode_seconds = 0;  // on the last piece
  bool finished() const { return finish_reason != FinishReason::kNone; }
};

// Called on the engine's thread, in order, never after a finished piece. Must not block.
using OutputSink = std::function<void(RequestOutput&&)>;

struct Request {
  std::string request_id;  // unique among live requests; empty = the engine makes one
  std::vector<int32_t> prompt_token_ids;
  SamplingParams sampling;
  int priority = 0;              // lower first, with --scheduling-policy priority
  std::string cache_salt;        // prefix blocks are shared among equal salts only
  std::optional<int> kv_budget;  // 0 = keep all
  std::optional<KvPolicy> kv_policy;
  std::optional<bool> protect_prompt;
  // The output's beginning, whatever the model says: it is computed, compressed and reported like sampled tokens
  // (with their log-probabilities), then sampling goes on. Counts towards max_tokens.
  std::vector<int32_t> forced_output_token_ids;
  // For benchmarks with made-up weights (--load-format dummy) alone: so many of the prompt's tokens, fewer than all,
  // are taken as computed and compressed before; their K and V are whatever the pool holds.
  int made_up_tokens = 0;
  // With thinking_token_budget: when thinking has not ended after so many tokens, these ids are forced.
  std::vector<int32_t> end_thinking_token_ids;
  bool starts_thinking = false;  // the prompt already opened the thought
  std::vector<int32_t> begin_thinking_token_ids;
  std::shared_ptr<TokenConstraint> constraint;
  OutputSink sink;
};

}  // namespace zipage
