// Decides what the next step does. Pure: reads sequences and the pool's counts, returns a plan that a test can print;
// touches no device, no clock, and changes nothing. Engine::step() applies the plan.
//
// Rank: the order of service. fcfs: arrival. priority: (priority, arrival). Blocks, tokens and query slots go to higher
// rank first, and a request is preempted only for one of higher rank, so the highest always gets on, nobody is
// preempted more often than those before it need blocks, and no set of requests stands still.
//
// Thread-safety: const; one thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/sequence.h"
#include "kv/block_pool.h"
#include "kv/prefix_cache.h"
#include "kv/slots.h"
#include "zipage/config.h"

namespace zipage {

struct SchedulerLimits {
  int block_size = 64;
  int max_num_seqs = 256;
  int max_num_batched_tokens = 2048;
  int max_logit_rows = 256;  // rows whose logits one step can compute
  bool chunked_prefill = true;
  bool priority = false;
  bool elastic = false;
  bool compression_in_lane = false;  // beside the batches, at most max_lane_jobs at a time; else between them
  int max_lane_jobs = 4;
};

// What the planner may look at. All pointers are borrowed for the call; running and waiting are in rank order.
struct SchedulerView {
  std::vector<const Sequence*> running;  // kRunning and kCompressing
  std::vector<const Sequence*> waiting;  // kWaiting and kSwapped
  const BlockPool* pool = nullptr;
  const PrefixCache* prefix_cache = nullptr;  // null: no prefix caching
  const Slots* query_slots = nullptr;
  int num_free_swap_blocks = 0;
  int num_free_swap_rings = 0;
  int num_lane_jobs = 0;
};

enum class PreemptKind : uint8_t { kRecompute, kSwap };

struct StepPlan {
  struct Preempt {
    SequenceId id;
    PreemptKind kind;
    bool save_ring;
  };
  struct SwapIn {
    SequenceId id;
    bool takes_query_slot;
  };
  struct Admit {
    SequenceId id;
    std::vector<BlockId> cached_blocks;
    uint64_t prefix_chain;
  };
  struct Compress {
    SequenceId id;
    int fresh_blocks;  // targets that must be new because leading blocks are shared
    int keep_indexed;  // leading blocks that stay in the prefix cache; the sequence's others are forgotten
  };
  struct Chunk {
    SequenceId id;
    int num_tokens;
    int new_blocks;
    bool takes_query_slot;
    bool records_queries;  // the window reaches into this chunk
    bool samples;          // its last token's logits choose the next token
  };
  std::vector<SequenceId> drop_query_slot;  // holders that do not need it now; an older request does
  std::vector<Preempt> preempt;
  std::vector<Compress> compress;
  std::vector<SwapIn> swap_in;
  std::vector<Admit> admit;
  std::vector<Chunk> chunks;          // inline compressions come before their chunk
  std::vector<SequenceId> exhausted;  // alone in the pool and cannot grow: ends with kLength
  int num_stalled = 0;                // wait for a block, a query slot or the lane, keeping what they hold

  bool empty() const {
    return preempt.empty() && compress.empty() && swap_in.empty() && admit.empty() && chunks.empty() &&
           exhausted.empty();
  }
};
std::string to_string(const StepPlan& plan);

bool ranks_before(const Sequence& a, const Sequence& b, bool priority);

class Scheduler {
 public:
  explicit Scheduler(SchedulerLimits limits) : limits_(limits) {}
  StepPlan plan(const SchedulerView& view) const;
  const SchedulerLimits& limits() const { return limits_; }

 private:
  SchedulerLimits limits_;
};

}  // namespace zipage
