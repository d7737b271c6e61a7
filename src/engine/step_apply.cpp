// The second half of "decide, then apply": the only place where a plan moves blocks, slots and states.
#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "engine/engine_impl.h"

namespace zipage {

// Order matters: what is given up first is there for those after it, and cached blocks are taken before anything is
// allocated, or an allocation could evict what an admission counts on.
StepBatch EngineImpl::apply(const StepPlan& plan) {
  for (SequenceId id : plan.drop_query_slot) give_back_query_slot(sequence(id));
  for (const StepPlan::Preempt& p : plan.preempt) preempt(sequence(p.id), p.kind, p.save_ring);
  for (const StepPlan::Admit& a : plan.admit) admit(sequence(a.id), a);
  for (const StepPlan::Compress& c : plan.compress) start_compression(sequence(c.id), c);
  for (const StepPlan::SwapIn& s : plan.swap_in) swap_in(sequence(s.id), s.takes_query_slot);

  std::vector<ScheduledChunk> chunks;
  chunks.reserve(plan.chunks.size());
  for (const StepPlan::Chunk& chunk : plan.chunks) {
    Sequence& s = sequence(chunk.id);
    for (int i = 0; i < chunk.new_blocks; ++i) s.blocks.push_back(pool_.allocate());
    s.stats.peak_blocks = std::max(s.stats.peak_blocks, static_cast<int>(s.blocks.size()));
    if (chunk.takes_query_slot) s.query_slot = QuerySlotId(query_slots_.take());
    chunks.push_back({&s, chunk.num_tokens, chunk.records_queries, chunk.samples});
  }
  // A pool that cannot hold one more block of the only request in it ends that request, not the engine; after the token
  // that is being sampled, if there is one.
  for (SequenceId id : plan.exhausted) {
    if (sequence(id).num_pending == 0) finish(sequence(id), FinishReason::kLength);
  }
  return flatten(std::move(chunks), config_.block_size, default_compression_);
}

void EngineImpl::preempt(Sequence& s, PreemptKind kind, bool save_ring) {
  if (kind == PreemptKind::kSwap) {
    const int used = (s.num_resident + config_.block_size - 1) / config_.block_size;
    std::vector<int32_t> blocks;
    for (int i = 0; i < used; ++i) {
      blocks.push_back(s.blocks[static_cast<size_t>(i)].value());
      s.swap_blocks.push_back(swap_blocks_.take());
    }
    runner_->swap_blocks(blocks, s.swap_blocks, /*to_host=*/true);
    if (save_ring) {
      s.swap_ring = swap_rings_.take();
      runner_->swap_ring(s.query_slot->value(), s.swap_ring, /*to_host=*/true);
    }
    ++s.stats.swaps;
    ++totals_.swaps_out;
    totals_.swap_bytes += static_cast<int64_t>(blocks.size()) * runner_->swap_bytes_per_block();
  } else {
    // Computed again from the first token; compressions happen again at the same places.
    s.num_computed = s.num_resident = s.num_scored = 0;
    s.num_published = 0;
    s.prefix_chain = s.prefix_root;
    s.prompt_compressed = false;
  }
  release_kv(s);
  running_.erase(&s);
  s.become(kind == PreemptKind::kSwap ? SequenceState::kSwapped : SequenceState::kWaiting);
  waiting_.insert(&s);
  ++s.stats.preemptions;
  ++totals_.preemptions;
}

bool EngineImpl::preempt_running(int n, PreemptKind kind) {
  if (n >= static_cast<int>(running_.size())) return false;
  Sequence& s = **std::next(running_.begin(), n);
  if (s.state != SequenceState::kRunning) return false;
  const int blocks = (s.num_resident + config_.block_size - 1) / config_.block_size;
  const bool swappable = s.num_scored > 0 && swap_blocks_.num_free() >= blocks && swap_rings_.num_free() > 0;
  if (kind == PreemptKind::kSwap && !swappable) return false;
  preempt(s, kind, kind == PreemptKind::kSwap && s.query_slot.has_value());
  return true;
}

void EngineImpl::swap_in(Sequence& s, bool takes_query_slot) {
  waiting_.erase(&s);
  s.become(SequenceState::kRunning);
  running_.insert(&s);
  std::vector<int32_t> blocks;
  for (size_t i = 0; i < s.swap_blocks.size(); ++i) {
    s.blocks.push_back(pool_.allocate());
    blocks.push_back(s.blocks.back().value());
  }
  const bool made_up = !s.swap_blocks.empty() && s.swap_blocks.front() < 0;
  if (!made_up) runner_->swap_blocks(blocks, s.swap_blocks, /*to_host=*/false);
  if (takes_query_slot) {
    s.query_slot = QuerySlotId(query_slots_.take());
    runner_->swap_ring(s.query_slot->value(), s.swap_ring, /*to_host=*/false);
  }
  if (!made_up) ++totals_.swaps_in;
  totals_.swap_bytes += made_up ? 0 : static_cast<int64_t>(blocks.size()) * runner_->swap_bytes_per_block();
  release_swap(s);
}

void EngineImpl::admit(Sequence& s, const StepPlan::Admit& admission) {
  waiting_.erase(&s);
  s.become(SequenceState::kRunning);
  running_.insert(&s);
  s.stats.compressions = 0;  // they happen again
  for (BlockId block : admission.cached_blocks) {
    pool_.share(block);
    s.blocks.push_back(block);
  }
  const int cached = static_cast<int>(admission.cached_blocks.size()) * config_.block_size;
  s.num_computed = s.num_resident = cached;
  s.num_published = static_cast<int>(admission.cached_blocks.size());
  s.prefix_chain = admission.prefix_chain;
  // What a preempted request finds of itself is recomputation saved, not a hit.
  if (s.num_cached_tokens < 0) {
    s.num_cached_tokens = std::min(cached, s.num_prompt);
    s.first_scheduled = std::chrono::steady_clock::now();
    if (config_.enable_prefix_caching) {
      totals_.prefix_cache_queries += s.num_prompt;
      totals_.prefix_cache_hits += s.num_cached_tokens;
    }
  }
}

void EngineImpl::start_compression(Sequence& s, const StepPlan::Compress& compression) {
  for (size_t i = static_cast<size_t>(compression.keep_indexed); i < s.blocks.size(); ++i) {
    if (pool_.owners(s.blocks[i]) == 1) prefix_cache_.forget(s.blocks[i]);
  }
  int shared = static_cast<int>(s.blocks.size());
  while (shared > 0 && pool_.writable(s.blocks[static_cast<size_t>(shared - 1)])) --shared;
  std::vector<BlockId> fresh;
  // Another owner may have let go since the plan was made; then fewer blocks need a copy.
  const int needed = fresh_blocks_needed(shared, s.num_resident, s.compression, config_.block_size);
  ZIPAGE_CHECK(needed <= compression.fresh_blocks, "sequence {} needs {} fresh blocks, planned were {}", s.id.value(),
               needed, compression.fresh_blocks);
  for (int i = 0; i < needed; ++i) fresh.push_back(pool_.allocate());
  CompressionPlan plan = plan_compression(s.blocks, shared, fresh, s.num_resident, s.compression, config_.block_size);
  if (!lane_) {
    runner_->compression(s, plan, /*in_lane=*/false)();
    finish_compression(s, plan);
    return;
  }
  s.become(SequenceState::kCompressing);
  const auto [job, added] = lane_jobs_.emplace(s.id, LaneJob{&s, std::move(plan)});
  ZIPAGE_CHECK(added, "sequence {} is compressed twice at once", s.id.value());
  // The map's node and the sequence's blocks stay where they are until the commit.
  lane_->submit(s.id, runner_->compression(s, job->second.plan, /*in_lane=*/true));
}

void EngineImpl::finish_compression(Sequence& s, const CompressionPlan& plan) {
  s.blocks = plan.table_after();
  for (BlockId block : plan.released) pool_.release(block);
  totals_.evicted_tokens += s.num_resident - s.compression.budget;
  s.num_resident = s.num_scored = s.compression.budget;
  s.prompt_compressed = true;
  ++s.stats.compressions;
  ++totals_.compressions;
  give_back_query_slot(s);
}

void EngineImpl::release_kv(Sequence& s) {
  // The last block first: of a cached chain the end is the first to be reused.
  for (size_t i = s.blocks.size(); i-- > 0;) pool_.release(s.blocks[i]);
  s.blocks.clear();
  give_back_query_slot(s);
}

void EngineImpl::release_swap(Sequence& s) {
  for (int block : s.swap_blocks) {
    if (block >= 0) swap_blocks_.give_back(block);
  }
  s.swap_blocks.clear();
  if (s.swap_ring >= 0) swap_rings_.give_back(s.swap_ring);
  s.swap_ring = -1;
}

void EngineImpl::give_back_query_slot(Sequence& s) {
  if (!s.query_slot) return;
  query_slots_.give_back(s.query_slot->value());
  s.query_slot.reset();
}

}  // namespace zipage
