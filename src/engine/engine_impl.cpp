#include "engine/engine_impl.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/log.h"

namespace zipage {
namespace {

using Clock = std::chrono::steady_clock;

SchedulerLimits scheduler_limits(const EngineConfig& config, const MemoryPlan& plan) {
  const bool in_lane = config.compression_mode == CompressionMode::kAsync;
  return {.block_size = config.block_size,
          .max_num_seqs = config.max_num_seqs,
          .max_num_batched_tokens = config.max_num_batched_tokens,
          .max_logit_rows = plan.max_logit_rows,
          .chunked_prefill = config.enable_chunked_prefill,
          .priority = config.scheduling_policy == SchedulingPolicy::kPriority,
          .elastic = config.kv_elastic,
          .compression_in_lane = in_lane};
}

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

}  // namespace

EngineImpl::EngineImpl(EngineConfig config, ModelInfo model, std::unique_ptr<ModelRunner> runner)
    : config_(std::move(config)),
      model_(std::move(model)),
      runner_(std::move(runner)),
      default_compression_(resolve(config_.compression)),
      scheduler_(scheduler_limits(config_, runner_->plan())),
      pool_(runner_->plan().kv.num_blocks),
      prefix_cache_(pool_, config_.block_size, static_cast<uint64_t>(config_.seed)),
      query_slots_(runner_->plan().num_query_slots),
      swap_blocks_(static_cast<int>(runner_->plan().swap.num_blocks)),
      swap_rings_(runner_->plan().swap.num_rings),
      running_(ByRank{config_.scheduling_policy == SchedulingPolicy::kPriority}),
      waiting_(ByRank{config_.scheduling_policy == SchedulingPolicy::kPriority}),
      sampling_(model_.vocab_size) {
  if (config_.compression_mode == CompressionMode::kAsync) lane_ = std::make_unique<CompressionLane>();
  totals_.last_progress = Clock::now();
  update_stats(0, 0);
}

EngineImpl::~EngineImpl() = default;

// ---- the engine's thread
// --------------------------------------------------------------------------------------------------

bool EngineImpl::step() {
  const Clock::time_point begin = Clock::now();
  take_inbox();
  commit_compressions();

  int num_tokens = 0;
  bool worked = !launched_.empty();
  try {
    if (!launched_.empty() && launched_.back().needs_settling) settle();
    const StepPlan plan = scheduler_.plan(view());
    worked |= !plan.empty();
    const StepBatch batch = apply(plan);
    num_tokens = batch.num_tokens();
    if (num_tokens > 0) {
      launch(batch);
      advance(batch);
      launched_.back().follows = launched_before_;
    }
    launched_before_ = num_tokens > 0;
    const size_t ahead = config_.async_scheduling.value_or(false) && num_tokens > 0 ? 1 : 0;
    while (launched_.size() > (sequences_.empty() ? 0 : ahead)) settle();
  } catch (const std::exception& error) {
    log_error("a step has failed: {}", error.what());
    fail_launched(Status(StatusCode::kInternal, error.what()));
  }
  worked |= !outputs_.empty();
  emit();
  ZIPAGE_DCHECK((check(), true), "invariants");
  if (worked) {
    update_stats(seconds_since(begin), num_tokens);
  } else if (lane_ && lane_->num_jobs() > 0) {
    lane_->wait();  // nothing else can go on
  } else if (running_.empty() && !waiting_.empty()) {
    // Cannot happen to a request that validate() let in; better one error than a queue that stands still.
    finish(**waiting_.begin(), FinishReason::kError,
           Status(StatusCode::kInternal, "the request cannot be scheduled although nothing else runs"));
    emit();
  }
  return has_work();
}

void EngineImpl::take_inbox() {
  std::vector<std::unique_ptr<Sequence>> arrived;
  std::vector<std::string> aborts;
  bool reset_cache = false;
  {
    const std::lock_guard lock(mutex_);
    arrived.swap(inbox_);
    aborts.swap(aborts_);
    reset_cache = std::exchange(reset_cache_requested_, false);
  }
  if (reset_cache) prefix_cache_.clear();
  for (std::unique_ptr<Sequence>& sequence : arrived) {
    sequence->prefix_root = sequence->prefix_chain = prefix_cache_.root(sequence->request.cache_salt);
    waiting_.insert(sequence.get());
    by_request_id_.emplace(sequence->request.request_id, sequence.get());
    sequences_.emplace(sequence->id, std::move(sequence));
  }
  for (const std::string& id : aborts) {
    const auto found = by_request_id_.find(id);
    if (found == by_request_id_.end()) continue;
    finish(*found->second, FinishReason::kAbort);
  }
}

void EngineImpl::commit_compressions() {
  if (!lane_) return;
  for (const CompressionLane::Done& done : lane_->take_done()) {
    auto job = lane_jobs_.extract(done.sequence);
    ZIPAGE_CHECK(!job.empty(), "the lane finished an unknown job of sequence {}", done.sequence.value());
    Sequence& sequence = *job.mapped().sequence;
    sequence.become(SequenceState::kRunning);
    finish_compression(sequence, job.mapped().plan);
    totals_.compression_seconds += done.seconds;
    if (done.error) {
      try {
        std::rethrow_exception(done.error);
      } catch (const std::exception& error) {
        finish(sequence, FinishReason::kError, Status(StatusCode::kInternal, error.what()));
      }
    } else if (sequence.end_after_compression) {
      const Sequence::End end = *sequence.end_after_compression;
      finish(sequence, end.reason, end.error);
    }
  }
}

SchedulerView EngineImpl::view() const {
  SchedulerView view{.running = {running_.begin(), running_.end()},
                     .waiting = {},
                     .pool = &pool_,
                     .prefix_cache = config_.enable_prefix_caching ? &prefix_cache_ : nullptr,
                     .query_slots = &query_slots_,
                     .num_free_swap_blocks = swap_blocks_.num_free(),
                     .num_free_swap_rings = swap_rings_.num_free(),
                     .num_lane_jobs = static_cast<int>(lane_jobs_.size())};
  // Admission is in rank order, so no more than this many can be of interest.
  for (const Sequence* sequence : waiting_) {
    if (static_cast<int>(view.waiting.size()) == config_.max_num_seqs) break;
    view.waiting.push_back(sequence);
  }
  return view;
}

void EngineImpl::launch(const StepBatch& batch) {
  sampling_.clear();
  int top_logprobs = -1;
  for (const ScheduledChunk& chunk : batch.chunks) {
    const Sequence& seq = *chunk.sequence;
    const SamplingParams& params = seq.request.sampling;
    if (params.logprobs) top_logprobs = std::max(top_logprobs, *params.logprobs);
    if (params.prompt_logprobs && seq.num_computed < seq.num_prompt) {
      top_logprobs = std::max(top_logprobs, *params.prompt_logprobs);
    }
    if (!chunk.samples) continue;
    const std::optional<int32_t> forced = seq.thinking ? seq.thinking->forced() : std::nullopt;
    sampling_.add(params, seq.sampling_seed, seq.length(), seq.history.get(), forbidden_tokens(seq), forced,
                  seq.request.constraint.get());
  }
  runner_->launch(batch, sampling_, top_logprobs);
}

void EngineImpl::emit() {
  // Sinks may submit and abort; nothing of the step is touched after they have been called.
  auto outputs = std::exchange(outputs_, {});
  auto finished = std::exchange(finished_, {});
  for (auto& entry : outputs) {
    const SequenceId id = entry.first;
    const auto live = sequences_.find(id);
    const Sequence* owner = live != sequences_.end() ? live->second.get() : nullptr;
    if (owner == nullptr) {
      const auto ended = std::ranges::find_if(finished, [&](const auto& sequence) { return sequence->id == id; });
      if (ended != finished.end()) owner = ended->get();
    }
    if (owner != nullptr && owner->request.sink) owner->request.sink(std::move(entry.second));
  }
}

void EngineImpl::run(const std::atomic<bool>& stop) {
  while (!stop.load()) {
    if (step()) {
      // Whoever sends the step's tokens gets the core here, rather than in the middle of a kernel that all others wait
      // for.
      std::this_thread::yield();
      continue;
    }
    std::unique_lock lock(mutex_);
    wake_.wait(lock, [this] { return woken_ || !inbox_.empty() || !aborts_.empty() || reset_cache_requested_; });
    woken_ = false;
  }
}

bool EngineImpl::has_work() const {
  if (!sequences_.empty()) return true;
  const std::lock_guard lock(mutex_);
  return !inbox_.empty();
}

// ---- any thread
// -------------------------------------------------------------------------------------------------------------

void EngineImpl::abort(const std::string& request_id) {
  {
    const std::lock_guard lock(mutex_);
    if (!live_ids_.contains(request_id)) return;
    aborts_.push_back(request_id);
  }
  wake_.notify_one();
}

void EngineImpl::wake() {
  {
    const std::lock_guard lock(mutex_);
    woken_ = true;
  }
  wake_.notify_one();
}

void EngineImpl::reset_prefix_cache() {
  {
    const std::lock_guard lock(mutex_);
    reset_cache_requested_ = true;
  }
  wake_.notify_one();
}

EngineStats EngineImpl::stats() const {
  const std::lock_guard lock(mutex_);
  EngineStats copy = stats_;
  copy.num_waiting += static_cast<int>(inbox_.size());
  return copy;
}

void EngineImpl::update_stats(double seconds, int num_tokens) {
  totals_.num_running = static_cast<int>(running_.size());
  totals_.num_waiting = static_cast<int>(waiting_.size());
  totals_.num_swapped = static_cast<int>(
      std::ranges::count_if(waiting_, [](const Sequence* s) { return s->state == SequenceState::kSwapped; }));
  totals_.num_compressing = static_cast<int>(lane_jobs_.size());
  totals_.blocks_total = pool_.size();
  totals_.blocks_live = pool_.num_live();
  totals_.blocks_cached = pool_.num_cached();
  totals_.blocks_free = pool_.num_free();
  totals_.blocks_quarantined = pool_.num_quarantined();
  totals_.peak_blocks_live = std::max(totals_.peak_blocks_live, pool_.num_live());
  totals_.query_slots_used = query_slots_.num_used();
  totals_.query_slots_total = query_slots_.size();
  totals_.kv_resident_tokens = 0;
  for (const Sequence* sequence : running_) totals_.kv_resident_tokens += sequence->num_resident;
  if (num_tokens > 0) {
    ++totals_.steps;
    totals_.step_tokens += num_tokens;
    const auto bound = std::lower_bound(kStepTokenBounds.begin(), kStepTokenBounds.end(), num_tokens);
    ++totals_.steps_by_tokens[static_cast<size_t>(bound - kStepTokenBounds.begin())];
  }
  totals_.step_seconds += seconds;
  totals_.last_step_tokens = num_tokens;
  totals_.last_progress = Clock::now();
  const std::lock_guard lock(mutex_);
  stats_ = totals_;
}

// ---- invariants
// ---------------------------------------------------------------------------------------------------------------

Sequence* EngineImpl::find(SequenceId id) {
  const auto found = sequences_.find(id);
  return found != sequences_.end() ? found->second.get() : nullptr;
}

Sequence& EngineImpl::sequence(SequenceId id) {
  Sequence* found = find(id);
  ZIPAGE_CHECK(found != nullptr, "the plan names sequence {}, which is not there", id.value());
  return *found;
}

void EngineImpl::check() const {
  pool_.check();
  std::unordered_map<BlockId, int> owners;
  int slots = 0, swapped_blocks = 0, swapped_rings = 0;
  for (const auto& [id, sequence] : sequences_) {
    const Sequence& s = *sequence;
    for (BlockId block : s.blocks) ++owners[block];
    slots += s.query_slot.has_value();
    swapped_blocks += static_cast<int>(std::ranges::count_if(s.swap_blocks, [](int block) { return block >= 0; }));
    swapped_rings += s.swap_ring >= 0;
    ZIPAGE_CHECK(s.num_scored <= s.num_resident && s.num_resident <= s.num_computed && s.num_computed <= s.length(),
                 "sequence {}: {} scored, {} resident, {} computed of {} tokens", id.value(), s.num_scored,
                 s.num_resident, s.num_computed, s.length());
    ZIPAGE_CHECK(s.num_scored > 0 || s.num_resident == s.num_computed || s.state == SequenceState::kSwapped,
                 "sequence {} was never compressed but holds {} of {} tokens", id.value(), s.num_resident,
                 s.num_computed);
    if (s.holds_kv()) {
      ZIPAGE_CHECK(s.num_resident <= static_cast<int>(s.blocks.size()) * config_.block_size,
                   "sequence {}: {} tokens in {} blocks", id.value(), s.num_resident, s.blocks.size());
    } else {
      ZIPAGE_CHECK(s.blocks.empty() && !s.query_slot, "sequence {} is {} and holds KV", id.value(), name(s.state));
    }
    // C6: a block that a compression wrote is in no index.
    if (s.num_scored > 0) {
      for (size_t i = 0; i < s.blocks.size(); ++i) {
        ZIPAGE_CHECK(s.state == SequenceState::kCompressing || !pool_.indexed(s.blocks[i]),
                     "C6: block {} of compressed sequence {} is offered to others", s.blocks[i].value(), id.value());
      }
    }
  }
  // A job's fresh targets are owned by it until the commit.
  for (const auto& [id, job] : lane_jobs_) {
    for (BlockId block : job.plan.targets) {
      if (std::ranges::find(job.sequence->blocks, block) == job.sequence->blocks.end()) ++owners[block];
    }
  }
  for (const auto& [block, count] : owners) {
    ZIPAGE_CHECK(pool_.owners(block) == count, "block {} has {} owners in the pool, {} in tables", block.value(),
                 pool_.owners(block), count);
  }
  ZIPAGE_CHECK(static_cast<int>(owners.size()) == pool_.num_live(), "{} live blocks, {} in tables", pool_.num_live(),
               owners.size());
  ZIPAGE_CHECK(slots == query_slots_.num_used() && swapped_blocks == swap_blocks_.num_used() &&
                   swapped_rings == swap_rings_.num_used(),
               "{} of {} query slots, {} of {} swap blocks, {} of {} swap rings are accounted for", slots,
               query_slots_.num_used(), swapped_blocks, swap_blocks_.num_used(), swapped_rings, swap_rings_.num_used());
}

}  // namespace zipage
