#include "engine/scheduler.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <unordered_set>

#include "base/check.h"
#include "compress/plan.h"

namespace zipage {
namespace {

int ceil_div(int a, int b) {
  return (a + b - 1) / b;
}

// A sequence that holds KV, as it will be after what the plan has decided so far.
struct Draft {
  const Sequence* sequence;
  int num_resident;
  int num_blocks;
  bool has_query_slot;
  bool compressed_now = false;  // an inline compression comes first in this step
  bool gone = false;            // preempted by this plan
  bool busy = false;            // in the lane
};

class Planner {
 public:
  Planner(const SchedulerLimits& limits, const SchedulerView& view)
      : limits_(limits),
        view_(view),
        available_(view.pool->num_available()),
        free_query_slots_(view.query_slots->num_free()),
        free_swap_blocks_(view.num_free_swap_blocks),
        free_swap_rings_(view.num_free_swap_rings),
        lane_jobs_(view.num_lane_jobs),
        tokens_left_(limits.max_num_batched_tokens),
        logit_rows_left_(limits.max_logit_rows) {
    drafts_.reserve(view.running.size());
    for (const Sequence* sequence : view.running) {
      drafts_.push_back({.sequence = sequence,
                         .num_resident = sequence->num_resident,
                         .num_blocks = static_cast<int>(sequence->blocks.size()),
                         .has_query_slot = sequence->query_slot.has_value(),
                         .busy = sequence->state == SequenceState::kCompressing});
      if (!drafts_.back().busy && sequence->num_uncomputed() == 1) ++decodes_left_;
    }
  }

  StepPlan run() {
    if (limits_.elastic) choose_elastic_compressions();
    for (size_t i = 0; i < drafts_.size(); ++i) {
      if (drafts_[i].gone) continue;
      if (drafts_[i].busy) {
        ++plan_.num_stalled;
        continue;
      }
      serve(i);
    }
    // While somebody waits for a block nobody new may take one.
    if (plan_.preempt.empty() && !blocked_on_blocks_) admit_waiting();
    return std::move(plan_);
  }

 private:
  // ---- requests that hold KV ---------------------------------------------------------------------------------------

  void serve(size_t i) {
    Draft& draft = drafts_[i];
    const Sequence& sequence = *draft.sequence;
    if (sequence.num_uncomputed() == 1) --decodes_left_;
    if (sequence.num_uncomputed() == 0) return;
    if (must_compress(draft) && !plan_compression(i)) return;
    plan_chunk(i);
  }

  int trigger(const Draft& draft) const {
    if (draft.compressed_now) return draft.sequence->compression.budget + draft.sequence->compression.slack;
    return compression_trigger(*draft.sequence);
  }

  bool must_compress(const Draft& draft) const {
    if (draft.compressed_now || draft.num_resident < trigger(draft)) return false;
    return !limits_.elastic || std::ranges::find(elastic_, draft.sequence) != elastic_.end();
  }

  // Leading blocks that must not be written: up to the last one that has another owner, or stays indexed.
  int shared_leading_blocks(const Sequence& sequence, int keep_indexed) const {
    for (int i = static_cast<int>(sequence.blocks.size()); i > 0; --i) {
      const BlockId block = sequence.blocks[static_cast<size_t>(i - 1)];
      if (view_.pool->owners(block) > 1 || (i <= keep_indexed && view_.pool->indexed(block))) return i;
    }
    return 0;
  }

  // Returns whether the sequence can be scheduled in this step too (an inline compression).
  bool plan_compression(size_t i) {
    Draft& draft = drafts_[i];
    const Sequence& sequence = *draft.sequence;
    if (limits_.compression_in_lane && lane_jobs_ >= limits_.max_lane_jobs) {
      ++plan_.num_stalled;
      return false;
    }
    ZIPAGE_CHECK(draft.has_query_slot, "sequence {} is due for compression without a query slot", sequence.id.value());
    // The prompt stays in the prefix cache while there is room for copies; outputs are not worth a copy.
    int keep_indexed = std::min(sequence.num_prompt / limits_.block_size, static_cast<int>(sequence.blocks.size()));
    int shared = shared_leading_blocks(sequence, keep_indexed);
    const auto fresh_blocks = [&] {
      return fresh_blocks_needed(shared, draft.num_resident, sequence.compression, limits_.block_size);
    };
    int fresh = fresh_blocks();
    if (fresh + reserve() > available_) {
      keep_indexed = 0;
      shared = shared_leading_blocks(sequence, 0);
      fresh = fresh_blocks();
    }
    if (!obtain_blocks(i, fresh)) return false;
    available_ -= fresh;
    plan_.compress.push_back({sequence.id, fresh, keep_indexed});
    for (size_t block = static_cast<size_t>(keep_indexed); block < sequence.blocks.size(); ++block) {
      doomed_.insert(sequence.blocks[block]);
    }
    if (limits_.compression_in_lane) {
      ++lane_jobs_;
      draft.busy = true;
      return false;
    }
    // Afterwards: target blocks, then as many own blocks as the slack asks for. Nothing is counted as given back: other
    // owners or the index may still hold it, and the next step counts anew.
    const int target_blocks = sequence.compression.budget / limits_.block_size;
    const int own_after = draft.num_blocks - shared - (target_blocks - fresh);
    draft.compressed_now = true;
    draft.num_resident = sequence.compression.budget;
    draft.num_blocks = target_blocks + std::clamp(own_after, 0, sequence.compression.slack / limits_.block_size);
    draft.has_query_slot = false;
    ++free_query_slots_;
    return true;
  }

  void plan_chunk(size_t i) {
    Draft& draft = drafts_[i];
    const Sequence& sequence = *draft.sequence;
    int num_tokens = chunk_tokens(sequence, draft.num_resident, trigger(draft));
    if (num_tokens <= 0) return;

    const int capacity = draft.num_blocks * limits_.block_size;
    int new_blocks = ceil_div(std::max(0, draft.num_resident + num_tokens - capacity), limits_.block_size);
    if (new_blocks > available_ && !obtain_blocks(i, new_blocks)) {
      // A chunk shrinks to the room there is; a single token has to wait.
      new_blocks = std::min(new_blocks, available_);
      num_tokens = std::min(num_tokens, capacity + new_blocks * limits_.block_size - draft.num_resident);
      if (num_tokens <= 0) {
        if (nobody_else_holds_blocks(i)) plan_.exhausted.push_back(sequence.id);
        return;
      }
    }
    const int window_begin = first_window_token(sequence, trigger(draft));
    const bool records = draft.num_resident + num_tokens > window_begin;
    bool takes_slot = false;
    if (records && !draft.has_query_slot) {
      takes_slot = obtain_query_slot(i);
      if (!takes_slot) {
        num_tokens = std::min(num_tokens, window_begin - draft.num_resident);
        if (num_tokens <= 0) {
          ++plan_.num_stalled;
          return;
        }
        new_blocks = std::max(0, ceil_div(draft.num_resident + num_tokens - capacity, limits_.block_size));
      }
    }
    schedule(sequence, num_tokens, new_blocks, takes_slot, records && (draft.has_query_slot || takes_slot));
    draft.num_blocks += new_blocks;
    draft.num_resident += num_tokens;
    draft.has_query_slot |= takes_slot;
  }

  // Tokens that one step may compute of this sequence, before blocks are asked for.
  int chunk_tokens(const Sequence& sequence, int num_resident, int trigger) const {
    int wanted = sequence.num_uncomputed();
    if (!limits_.elastic || num_resident < trigger) wanted = std::min(wanted, trigger - num_resident);
    if (wanted == 1) return std::min(1, tokens_left_);
    // Requests that decode come first: a long prompt takes what they leave.
    int room = std::max(tokens_left_ - decodes_left_, std::min(tokens_left_, 1));
    if (!limits_.chunked_prefill) {
      // In one piece: when it does not fit beside others it waits until it is alone.
      if (wanted > room && tokens_left_ < limits_.max_num_batched_tokens) return 0;
      room = wanted;
    }
    const bool all_rows = sequence.request.sampling.prompt_logprobs.has_value() ||
                          (sequence.num_forced > 0 && sequence.request.sampling.logprobs.has_value());
    if (all_rows) room = std::min(room, logit_rows_left_);
    return std::min(wanted, room);
  }

  // Resident index from which on queries must be recorded.
  static int first_window_token(const Sequence& sequence, int trigger) {
    return trigger == std::numeric_limits<int>::max()
               ? trigger
               : trigger - sequence.compression.window * sequence.compression.query_stride;
  }

  void schedule(const Sequence& sequence, int num_tokens, int new_blocks, bool takes_slot, bool records) {
    const int end = sequence.num_computed + num_tokens;
    const bool samples = end == sequence.length();
    plan_.chunks.push_back({sequence.id, num_tokens, new_blocks, takes_slot, records, samples});
    available_ -= new_blocks;
    tokens_left_ -= std::min(num_tokens, tokens_left_);
    const bool all_rows = sequence.request.sampling.prompt_logprobs.has_value() || sequence.num_forced > 0;
    logit_rows_left_ -= all_rows ? num_tokens : 1;
  }

  // ---- taking from others
  // ----------------------------------------------------------------------------------------------

  static int exclusive_blocks(const Sequence& sequence, const BlockPool& pool) {
    return static_cast<int>(
        std::ranges::count_if(sequence.blocks, [&](BlockId block) { return pool.owners(block) == 1; }));
  }

  // Makes `need` blocks available for drafts_[i] by preempting requests of lower rank. False: it has to wait.
  bool obtain_blocks(size_t i, int need) {
    while (available_ < need) {
      const size_t victim = choose_victim(i);
      if (victim == drafts_.size()) {
        blocked_on_blocks_ = true;
        ++plan_.num_stalled;
        return false;
      }
      preempt(victim);
    }
    return true;
  }

  // First requests without a query slot, newest first, then the newest of all; only of lower rank than drafts_[i], and
  // none that this plan has served already (those rank higher).
  size_t choose_victim(size_t i) const {
    size_t newest = drafts_.size();
    for (size_t j = drafts_.size(); j-- > i + 1;) {
      if (drafts_[j].gone || drafts_[j].busy) continue;
      if (!drafts_[j].has_query_slot) return j;
      if (newest == drafts_.size()) newest = j;
    }
    return newest;
  }

  bool nobody_else_holds_blocks(size_t i) const {
    if (lane_jobs_ > 0 || view_.pool->num_quarantined() > 0) return false;
    for (size_t j = 0; j < drafts_.size(); ++j) {
      // Blocks of one that this plan preempts count from the next step on.
      if (j != i && drafts_[j].num_blocks > 0) return false;
    }
    return true;
  }

  void preempt(size_t victim) {
    Draft& draft = drafts_[victim];
    const Sequence& sequence = *draft.sequence;
    const int blocks = ceil_div(sequence.num_resident, limits_.block_size);
    const bool window_begun =
        draft.has_query_slot && sequence.num_resident > first_window_token(sequence, compression_trigger(sequence));
    const bool swap = sequence.stats.compressions > 0 && sequence.num_scored > 0 && free_swap_blocks_ >= blocks &&
                      (!window_begun || free_swap_rings_ > 0);
    if (swap) {
      free_swap_blocks_ -= blocks;
      free_swap_rings_ -= window_begun;
    }
    plan_.preempt.push_back({sequence.id, swap ? PreemptKind::kSwap : PreemptKind::kRecompute, swap && window_begun});
    available_ += exclusive_blocks(sequence, *view_.pool);
    if (draft.has_query_slot) ++free_query_slots_;
    draft.gone = true;
    draft.has_query_slot = false;
    if (sequence.num_uncomputed() == 1) --decodes_left_;
  }

  // A slot for drafts_[i]: a free one, else that of the newest holder of lower rank whose window has not begun, else
  // the newest holder of lower rank gives way with all it has.
  bool obtain_query_slot(size_t i) {
    if (free_query_slots_ == 0) take_idle_query_slot(i);
    for (size_t j = drafts_.size(); free_query_slots_ == 0 && j-- > i + 1;) {
      if (drafts_[j].has_query_slot && !drafts_[j].gone && !drafts_[j].busy) preempt(j);
    }
    if (free_query_slots_ == 0) return false;
    --free_query_slots_;
    return true;
  }

  void take_idle_query_slot(size_t i) {
    for (size_t j = drafts_.size(); j-- > i + 1;) {
      Draft& holder = drafts_[j];
      if (holder.gone || holder.busy || !holder.has_query_slot) continue;
      if (holder.num_resident > first_window_token(*holder.sequence, compression_trigger(*holder.sequence))) continue;
      plan_.drop_query_slot.push_back(holder.sequence->id);
      holder.has_query_slot = false;
      ++free_query_slots_;
      return;
    }
  }

  // ---- elastic budget
  // ----------------------------------------------------------------------------------------------------

  // Below the low watermark the longest of those that may be compressed are, until the high one is reached.
  void choose_elastic_compressions() {
    const int low = std::max(1, view_.pool->size() / 16);
    const int high = std::max(2, view_.pool->size() / 8);
    int expected = available_;
    if (expected > low) return;
    std::vector<const Draft*> candidates;
    for (const Draft& draft : drafts_) {
      if (!draft.busy && draft.has_query_slot && draft.num_resident >= trigger(draft)) candidates.push_back(&draft);
    }
    std::ranges::sort(candidates, [](const Draft* a, const Draft* b) {
      return a->num_resident != b->num_resident ? a->num_resident > b->num_resident : a->sequence->id < b->sequence->id;
    });
    for (const Draft* draft : candidates) {
      if (expected >= high) break;
      elastic_.push_back(draft->sequence);
      expected += draft->num_blocks - draft->sequence->compression.budget / limits_.block_size;
    }
  }

  // ---- requests without KV
  // -------------------------------------------------------------------------------------------------

  // Blocks that admission leaves alone, so that those that run can grow for a while.
  int reserve() const { return ceil_div(static_cast<int>(drafts_.size()), 4); }

  // What the sequence may grow to at most as far as that is bounded: a compressed one's N_max.
  int committed_blocks(const Sequence& sequence, int num_blocks) const {
    if (!sequence.compression.enabled() || sequence.compression.when != KvCompress::kAll || limits_.elastic) {
      return num_blocks;
    }
    const int peak = std::min(max_compressed_blocks(sequence.compression, limits_.block_size),
                              ceil_div(sequence.num_prompt + sequence.request.sampling.max_tokens, limits_.block_size));
    return std::max(num_blocks, peak);
  }

  void admit_waiting() {
    int committed = 0;
    int holders = 0;
    for (const Draft& draft : drafts_) {
      committed += committed_blocks(*draft.sequence, draft.num_blocks);
      ++holders;
    }
    for (const Sequence* sequence : view_.waiting) {
      if (holders >= limits_.max_num_seqs || tokens_left_ <= 0 || logit_rows_left_ <= 0) return;
      const bool first = holders == 0;
      const int growth = committed_blocks(*sequence, 0);
      // Bounded requests are admitted only when all can reach their bound: then none of them is ever preempted.
      if (!first && growth > 0 && committed + growth > view_.pool->size()) return;
      const int headroom = first ? 0 : (sequence->stats.preemptions > 0 ? holders : reserve());
      const bool admitted = sequence->state == SequenceState::kSwapped ? plan_swap_in(*sequence, headroom)
                                                                       : plan_admission(*sequence, headroom);
      if (!admitted) return;
      ++holders;
      committed += std::max(growth, 1);
    }
  }

  bool plan_swap_in(const Sequence& sequence, int headroom) {
    const int blocks = static_cast<int>(sequence.swap_blocks.size());
    const bool needs_slot = sequence.swap_ring >= 0;
    if (blocks + headroom > available_ || (needs_slot && free_query_slots_ == 0)) return false;
    available_ -= blocks;
    free_query_slots_ -= needs_slot;
    plan_.swap_in.push_back({sequence.id, needs_slot});
    // It takes part from the next step on: its blocks are on their way.
    return true;
  }

  bool plan_admission(const Sequence& sequence, int headroom) {
    const int block_size = limits_.block_size;
    const int next_trigger = compression_trigger(sequence);
    StepPlan::Admit admit{.id = sequence.id, .cached_blocks = {}, .prefix_chain = sequence.prefix_root};
    if (view_.prefix_cache != nullptr && sequence.use_prefix_cache) {
      // At least one token is computed, and so is the window of a compression that comes right after the prompt.
      int reusable = static_cast<int>(sequence.tokens.size()) - 1;
      if (next_trigger != std::numeric_limits<int>::max()) {
        reusable = std::min(reusable, first_window_token(sequence, next_trigger));
      }
      const std::span<const int32_t> tokens(sequence.tokens);
      auto match =
          view_.prefix_cache->match(sequence.prefix_root, tokens.first(static_cast<size_t>(std::max(0, reusable))));
      // A block that this plan compresses is not the prefix's any more when the admission comes to it.
      const auto doomed = std::ranges::find_if(match.blocks, [&](BlockId block) { return doomed_.contains(block); });
      if (doomed != match.blocks.end()) {
        const auto clean = static_cast<size_t>(doomed - match.blocks.begin());
        match = view_.prefix_cache->match(sequence.prefix_root, tokens.first(clean * static_cast<size_t>(block_size)));
      }
      admit.cached_blocks = std::move(match.blocks);
      admit.prefix_chain = match.chain;
    }
    const int num_cached = static_cast<int>(admit.cached_blocks.size());
    // Cached blocks that nobody uses are taken out of what is available.
    const int revived = static_cast<int>(
        std::ranges::count_if(admit.cached_blocks, [&](BlockId block) { return view_.pool->owners(block) == 0; }));
    const int num_resident = num_cached * block_size;
    const int computable = sequence.num_computed + sequence.num_uncomputed();
    // Elastic: all of it where there is room, else as far as the first compression.
    int first_stretch = computable;
    int needed = ceil_div(first_stretch, block_size) - num_cached + revived;
    if (!limits_.elastic || needed + headroom > available_) {
      first_stretch = std::min(computable, next_trigger);
      needed = ceil_div(first_stretch, block_size) - num_cached + revived;
    }
    if (needed + headroom > available_) {
      // It grew until the pool was full and then gave way: what it has said is all that it can say here.
      if (ceil_div(first_stretch, block_size) > view_.pool->size()) plan_.exhausted.push_back(sequence.id);
      return false;
    }

    // chunk_tokens() reads the sequence as it is now; what the cache holds is not computed again.
    int num_tokens = first_stretch - num_resident;
    const int room = std::max(tokens_left_ - decodes_left_, std::min(tokens_left_, 1));
    if (limits_.chunked_prefill) {
      num_tokens = std::min(num_tokens, room);
    } else if (num_tokens > room && tokens_left_ < limits_.max_num_batched_tokens) {
      return false;
    }
    const bool all_rows = sequence.request.sampling.prompt_logprobs.has_value() ||
                          (sequence.num_forced > 0 && sequence.request.sampling.logprobs.has_value());
    if (all_rows) num_tokens = std::min(num_tokens, logit_rows_left_);

    const int window_begin = first_window_token(sequence, next_trigger);
    bool takes_slot = false;
    if (num_resident + num_tokens > window_begin) {
      if (free_query_slots_ > 0) {
        takes_slot = true;
        --free_query_slots_;
      } else {
        num_tokens = window_begin - num_resident;
        if (num_tokens <= 0) return false;
      }
    }
    available_ -= revived;
    plan_.admit.push_back(std::move(admit));
    const int new_blocks = ceil_div(num_resident + num_tokens, block_size) - num_cached;
    const bool samples = num_resident + num_tokens == sequence.length();
    plan_.chunks.push_back({sequence.id, num_tokens, new_blocks, takes_slot, takes_slot, samples});
    available_ -= new_blocks;
    tokens_left_ -= std::min(num_tokens, tokens_left_);
    logit_rows_left_ -= all_rows ? num_tokens : 1;
    // The rest of the prompt is spoken for, or two half-computed prompts would block each other.
    available_ -= std::max(0, needed - revived - new_blocks);
    return true;
  }

  const SchedulerLimits& limits_;
  const SchedulerView& view_;
  std::vector<Draft> drafts_;
  std::vector<const Sequence*> elastic_;
  std::unordered_set<BlockId> doomed_;  // leave the prefix cache in this plan
  StepPlan plan_;
  int available_;
  int free_query_slots_;
  int free_swap_blocks_;
  int free_swap_rings_;
  int lane_jobs_;
  int tokens_left_;
  int logit_rows_left_;
  int decodes_left_ = 0;
  bool blocked_on_blocks_ = false;
};

}  // namespace

bool ranks_before(const Sequence& a, const Sequence& b, bool priority) {
  if (priority && a.request.priority != b.request.priority) return a.request.priority < b.request.priority;
  return a.id < b.id;
}

StepPlan Scheduler::plan(const SchedulerView& view) const {
  return Planner(limits_, view).run();
}

std::string to_string(const StepPlan& plan) {
  std::string text;
  const auto out = std::back_inserter(text);
  for (const auto& p : plan.preempt) {
    fmt::format_to(out, "preempt {} ({})\n", p.id.value(), p.kind == PreemptKind::kSwap ? "swap" : "recompute");
  }
  for (const auto& c : plan.compress) {
    fmt::format_to(out, "compress {} (fresh blocks {}, indexed {})\n", c.id.value(), c.fresh_blocks, c.keep_indexed);
  }
  for (const auto& s : plan.swap_in) fmt::format_to(out, "swap in {}\n", s.id.value());
  for (const auto& a : plan.admit) {
    fmt::format_to(out, "admit {} ({} cached blocks)\n", a.id.value(), a.cached_blocks.size());
  }
  for (const auto& c : plan.chunks) {
    fmt::format_to(out, "compute {}: {} tokens, {} new blocks{}{}\n", c.id.value(), c.num_tokens, c.new_blocks,
                   c.records_queries ? ", records queries" : "", c.samples ? ", samples" : "");
  }
  for (const auto& id : plan.exhausted) fmt::format_to(out, "exhausted {}\n", id.value());
  fmt::format_to(out, "{} stalled\n", plan.num_stalled);
  return text;
}

}  // namespace zipage
