// The engine behind include/zipage/engine.h. step() is the table of contents.
//
//   submit() ── inbox ──┐ engine's thread from here on
//                       v
//   take_inbox ─ commit_compressions ─ plan ─ apply ─ launch ─ advance ─ settle ─ emit
//
// With async scheduling a step settles what the step before launched, while its own batch runs:
//
//   step n       plan n   launch n     settle n-1        the device runs n-1, then n
//   step n+1     plan n+1 launch n+1   settle n          the device runs n, then n+1
//
// So a plan is made with up to one token of each sequence unknown (Sequence::num_pending). Lengths are known; where the
// text matters (penalties, grammars) the batch is settled before the plan. A sequence that turns out to have stopped
// has been computed for one token too many; nobody hears of it.
//
// Ownership: sequences_ owns every unfinished sequence; running_ and waiting_ hold them in rank order.
#pragma once

#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <unordered_map>
#include <vector>

#include "engine/compression_lane.h"
#include "engine/model_runner.h"
#include "engine/scheduler.h"
#include "engine/sequence.h"
#include "kv/block_pool.h"
#include "kv/prefix_cache.h"
#include "kv/slots.h"
#include "zipage/engine.h"

namespace zipage {

class EngineImpl final : public Engine {
 public:
  // `config` is validated and effective.
  EngineImpl(EngineConfig config, ModelInfo model, std::unique_ptr<ModelRunner> runner);
  ~EngineImpl() override;

  Result<std::string> submit(Request request) override;
  void abort(const std::string& request_id) override;
  bool step() override;
  bool has_work() const override;
  void run(const std::atomic<bool>& stop) override;
  void wake() override;
  EngineStats stats() const override;
  const ModelInfo& model() const override { return model_; }
  const EngineConfig& config() const override { return config_; }
  std::string memory_plan() const override { return runner_->plan().table(); }
  void reset_prefix_cache() override;

  // For tests, between steps: preempts the n-th running request as a plan would. False: there is none, it is being
  // compressed, or it cannot be swapped.
  bool preempt_running(int n, PreemptKind kind);
  ModelRunner& runner() { return *runner_; }
  // Aborts with the numbers when an invariant of pool, slots or sequences is broken (C6, C8, ranges).
  void check() const;

 private:
  struct ByRank {
    bool priority;
    bool operator()(const Sequence* a, const Sequence* b) const { return ranks_before(*a, *b, priority); }
  };
  struct LaneJob {
    Sequence* sequence;
    CompressionPlan plan;
  };
  // A batch that runs on the device. Its sequences may end before it is settled.
  struct Launched {
    struct Chunk {
      SequenceId id;
      int end;  // num_computed after it
      bool samples;
    };
    struct ScoredToken {
      SequenceId id;
      int index;
    };
    std::vector<Chunk> chunks;
    std::vector<ScoredToken> scored;
    int num_sampled = 0;
    int num_prompt_tokens = 0;    // computed for the first time
    bool needs_settling = false;  // before the next plan
    bool follows = false;         // a batch of the step before
  };

  // ---- step's stages ----
  void take_inbox();
  void commit_compressions();
  SchedulerView view() const;
  StepBatch apply(const StepPlan& plan);
  void launch(const StepBatch& batch);
  void advance(const StepBatch& batch);
  void settle();
  void emit();

  // ---- apply (step_apply.cpp) ----
  void preempt(Sequence& sequence, PreemptKind kind, bool save_ring);
  void swap_in(Sequence& sequence, bool takes_query_slot);
  void admit(Sequence& sequence, const StepPlan::Admit& admission);
  void start_compression(Sequence& sequence, const StepPlan::Compress& compression);
  void finish_compression(Sequence& sequence, const CompressionPlan& plan);
  void release_kv(Sequence& sequence);
  void release_swap(Sequence& sequence);
  void give_back_query_slot(Sequence& sequence);

  // ---- settle (step_settle.cpp) ----
  void accept_token(Sequence& sequence, int32_t token);
  void end_constrained(Sequence& sequence);
  void report_token(Sequence& sequence, int32_t token);
  void report_forced_tokens(Sequence& sequence, int num_computed);
  void publish_blocks(Sequence& sequence);
  std::vector<int32_t> forbidden_tokens(const Sequence& sequence) const;
  bool is_stop(const Sequence& sequence, int32_t token) const;
  RequestOutput& output_of(Sequence& sequence);
  void finish(Sequence& sequence, FinishReason reason, Status error = {});
  void fail_launched(const Status& error);

  Sequence& sequence(SequenceId id);
  Sequence* find(SequenceId id);  // null: it has ended
  Status validate(Request& request, CompressionParams* params) const;
  void update_stats(double seconds, int num_tokens);

  const EngineConfig config_;
  const ModelInfo model_;
  std::unique_ptr<ModelRunner> runner_;
  const CompressionParams default_compression_;
  Scheduler scheduler_;
  BlockPool pool_;
  PrefixCache prefix_cache_;
  Slots query_slots_, swap_blocks_, swap_rings_;

  std::unordered_map<SequenceId, std::unique_ptr<Sequence>> sequences_;
  std::unordered_map<std::string, Sequence*> by_request_id_;
  std::set<Sequence*, ByRank> running_, waiting_;
  std::map<SequenceId, LaneJob> lane_jobs_;
  std::unique_ptr<CompressionLane> lane_;            // null: inline
  bool launched_before_ = false;                     // the step before launched a batch
  std::deque<Launched> launched_;                    // the oldest first
  std::map<SequenceId, RequestOutput> outputs_;      // of this step, in order of arrival
  std::vector<std::unique_ptr<Sequence>> finished_;  // of this step: their sinks are still to be called
  SamplingBatch sampling_;

  mutable std::mutex mutex_;  // guards all below
  std::condition_variable wake_;
  std::vector<std::unique_ptr<Sequence>> inbox_;
  std::vector<std::string> aborts_;
  std::set<std::string> live_ids_;
  bool reset_cache_requested_ = false;
  bool woken_ = false;
  uint64_t next_id_ = 0;
  EngineStats stats_;
  EngineStats totals_;  // the engine's thread only; copied into stats_ after each step
};

}  // namespace zipage
