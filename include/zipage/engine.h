// The engine: token ids in, token ids out. One object owns the model, the KV pool and the scheduler.
//
// Thread-safety: submit(), abort(), stats(), reset_prefix_cache() and wake() may be called from any thread at any time.
// step(), run() and has_work() belong to one thread, the engine's. Sinks are called on it.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "zipage/config.h"
#include "zipage/request.h"
#include "zipage/status.h"

namespace zipage {

// Upper bounds of the histogram of tokens a step, vLLM's.
inline constexpr std::array<int, 13> kStepTokenBounds = {1,   8,    16,   32,   64,   128,  256,
                                                         512, 1024, 2048, 4096, 8192, 16384};

// Counters since start and gauges of now. A consistent copy.
struct EngineStats {
  int num_running = 0, num_waiting = 0, num_swapped = 0, num_compressing = 0;
  int blocks_total = 0, blocks_live = 0, blocks_cached = 0, blocks_free = 0, blocks_quarantined = 0;
  int query_slots_used = 0, query_slots_total = 0;
  int64_t kv_resident_tokens = 0;
  int64_t steps = 0, prompt_tokens = 0, generation_tokens = 0;
  int64_t preemptions = 0, compressions = 0, evicted_tokens = 0;
  int64_t swaps_out = 0, swaps_in = 0, swap_bytes = 0;
  int64_t prefix_cache_queries = 0, prefix_cache_hits = 0;  // tokens; recomputation is no hit
  int64_t corrupted_requests = 0;                           // logits without a finite value
  int64_t finished[5] = {};                                 // by FinishReason
  double compression_seconds = 0, step_seconds = 0;
  double device_seconds = 0;       // that batches took on the device
  double device_idle_seconds = 0;  // between batches of steps that followed each other
  int peak_blocks_live = 0;
  int64_t last_step_tokens = 0;
  std::array<int64_t, kStepTokenBounds.size() + 1> steps_by_tokens{};  // steps above the bound before, up to this one
  int64_t step_tokens = 0;                                             // of all steps
  std::chrono::steady_clock::time_point last_progress;                 // end of the last step that did something
};

struct ModelInfo {
  std::string name, architecture, dtype;
  int num_layers = 0, hidden_size = 0, num_heads = 0, num_kv_heads = 0, head_dim = 0, intermediate_size = 0;
  int vocab_size = 0;  // embedding rows: the bound for token ids
  int max_model_len = 0;
  int64_t num_parameters = 0, weight_bytes = 0;
  std::vector<int32_t> eos_token_ids;
};

class Engine {
 public:
  // Loads the model that config.model names and reserves all memory. Takes seconds.
  static Result<std::unique_ptr<Engine>> create(const EngineConfig& config);
  virtual ~Engine() = default;

  // Validates and queues. Errors (nothing is queued, the sink is never called): kInvalidArgument with param(), among
  // them a request that could never fit the pool; kResourceExhausted when max_queued_requests wait.
  // Returns the request's id.
  virtual Result<std::string> submit(Request request) = 0;
  // The sink gets a last piece with kAbort at the next step boundary. Unknown and finished ids are ignored.
  virtual void abort(const std::string& request_id) = 0;

  // One iteration. Returns whether there was work.
  virtual bool step() = 0;
  virtual bool has_work() const = 0;
  // Steps until `stop` is set; sleeps while there is no work. Call wake() after setting `stop`.
  virtual void run(const std::atomic<bool>& stop) = 0;
  virtual void wake() = 0;

  virtual EngineStats stats() const = 0;
  virtual const ModelInfo& model() const = 0;
  virtual const EngineConfig& config() const = 0;  // the effective one
  virtual std::string memory_plan() const = 0;     // printable table
  // Forgets all cached prefixes at the next step boundary; running requests keep their blocks.
  virtual void reset_prefix_cache() = 0;
};

}  // namespace zipage
