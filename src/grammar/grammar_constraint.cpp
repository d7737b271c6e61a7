#include "grammar/grammar_constraint.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "grammar/allocation_limit.h"

namespace zipage {
namespace {

// One step through a grammar takes microseconds; one that an ambiguous grammar has blown up ends its own request.
constexpr double kStepSeconds = 1;
constexpr size_t kStepBytes = size_t{256} << 20;

void set_bit(uint32_t* mask, int32_t token) {
  mask[static_cast<size_t>(token) / 32] |= 1U << (token % 32);
}

}  // namespace

GrammarMatch::GrammarMatch(const xgrammar::CompiledGrammar& grammar, std::vector<int32_t> stop_ids, int vocab,
                           std::shared_ptr<TaskThreads> workers)
    : stop_ids_(std::move(stop_ids)),
      vocab_(vocab),
      workers_(std::move(workers)),
      matcher_(grammar, stop_ids_),
      mask_(static_cast<size_t>(xgrammar::GetBitmaskSize(vocab))) {}

void GrammarMatch::prepare() {
  {
    const std::lock_guard lock(mutex_);
    if (state_ != State::kIdle || current_) return;
    state_ = State::kQueued;
  }
  workers_->post([self = shared_from_this()] {
    std::unique_lock lock(self->mutex_);
    if (self->state_ == State::kQueued) self->work(lock);
  });
}

void GrammarMatch::accept(int32_t token) {
  {
    const std::lock_guard lock(mutex_);
    pending_.push_back(token);
    if (state_ != State::kRunning) current_ = false;
  }
  prepare();
}

void GrammarMatch::work(std::unique_lock<std::mutex>& lock) {
  state_ = State::kRunning;
  do {
    taken_ = std::exchange(pending_, {});
    lock.unlock();
    catch_up();
    lock.lock();
  } while (!pending_.empty());
  current_ = true;
  state_ = State::kIdle;
  idle_.notify_all();
}

void GrammarMatch::catch_up() {
  if (!error_.ok()) return;
  const auto fail = [this](std::string message) {
    error_ = Status(StatusCode::kInternal, std::move(message));
    std::ranges::fill(mask_, 0);
    all_allowed_ = only_stop_ = false;
  };
  try {
    const AllocationLimit limit(kStepSeconds, kStepBytes);
    for (const int32_t token : taken_) {
      if (matcher_.IsTerminated()) continue;
      if (!matcher_.AcceptToken(token)) return fail(fmt::format("token {} is not one that the grammar allows", token));
    }
    std::ranges::fill(mask_, 0);
    only_stop_ = matcher_.IsTerminated();
    if (only_stop_) return;
    int64_t words = static_cast<int64_t>(mask_.size());
    DLTensor tensor{.data = mask_.data(),
                    .device = {kDLCPU, 0},
                    .ndim = 1,
                    .dtype = xgrammar::GetBitmaskDLType(),
                    .shape = &words,
                    .strides = nullptr,
                    .byte_offset = 0};
    all_allowed_ = !matcher_.FillNextTokenBitmask(&tensor);
  } catch (const std::exception& error) {
    return fail(fmt::format("the grammar's next step could not be computed: {}", error.what()));
  }
  if (all_allowed_) return;
  if (vocab_ % 32 != 0) mask_.back() &= (1U << (vocab_ % 32)) - 1;
  if (!matcher_.IsCompleted()) return;
  std::vector<uint32_t> stops(mask_.size(), 0);
  for (const int32_t id : stop_ids_) set_bit(stops.data(), id);
  only_stop_ = true;
  for (size_t i = 0; i < mask_.size() && only_stop_; ++i) only_stop_ = (mask_[i] & ~stops[i]) == 0;
}

void GrammarMatch::wait_until_current(std::unique_lock<std::mutex>& lock) {
  if (state_ == State::kRunning) idle_.wait(lock, [this] { return state_ != State::kRunning; });
  if (!current_) work(lock);
}

const std::vector<uint32_t>& GrammarMatch::mask() {
  static const std::vector<uint32_t> kAll;
  std::unique_lock lock(mutex_);
  wait_until_current(lock);
  return all_allowed_ ? kAll : mask_;
}

bool GrammarMatch::only_stop_follows() {
  std::unique_lock lock(mutex_);
  wait_until_current(lock);
  return only_stop_;
}

bool GrammarMatch::accepts_first(int32_t token) {
  const std::vector<uint32_t>& now = mask();
  return now.empty() || (now[static_cast<size_t>(token) / 32] >> (token % 32) & 1U) != 0;
}

Status GrammarMatch::error() {
  std::unique_lock lock(mutex_);
  wait_until_current(lock);
  return error_;
}

GrammarConstraint::GrammarConstraint(std::shared_ptr<GrammarMatch> match, ThoughtGate gate,
                                     std::vector<int32_t> stop_ids)
    : match_(std::move(match)), gate_(std::move(gate)), stop_ids_(std::move(stop_ids)) {
  switch (gate_.start) {
    case ThoughtGate::Start::kAnswer:
      phase_ = Phase::kAnswer;
      break;
    case ThoughtGate::Start::kThought:
      phase_ = Phase::kThought;
      break;
    case ThoughtGate::Start::kEither:
      phase_ = gate_.begin.empty() ? Phase::kAnswer : Phase::kEither;
      break;
  }
  match_->prepare();
}

void GrammarConstraint::allow_all_but_stops(uint32_t* mask, int vocab) const {
  std::fill_n(mask, vocab / 32, ~0U);
  if (vocab % 32 != 0) mask[vocab / 32] = (1U << (vocab % 32)) - 1;
  for (const int32_t id : stop_ids_) mask[static_cast<size_t>(id) / 32] &= ~(1U << (id % 32));
}

bool GrammarConstraint::fill_mask(uint32_t* mask, int vocab) {
  if (phase_ == Phase::kThought) {
    allow_all_but_stops(mask, vocab);
    return true;
  }
  if (phase_ == Phase::kBeginTag) {
    set_bit(mask, gate_.begin[begin_seen_]);
    return true;
  }
  const std::vector<uint32_t>& allowed = match_->mask();
  if (allowed.empty()) return false;
  std::ranges::copy(allowed, mask);
  if (phase_ == Phase::kEither) set_bit(mask, gate_.begin.front());
  return true;
}

void GrammarConstraint::accept(int32_t token) {
  switch (phase_) {
    case Phase::kEither:
      if (token == gate_.begin.front() && !match_->accepts_first(token)) {
        begin_seen_ = 1;
        phase_ = gate_.begin.size() > 1 ? Phase::kBeginTag : Phase::kThought;
        return;
      }
      phase_ = Phase::kAnswer;
      break;
    case Phase::kBeginTag:
      if (++begin_seen_ == gate_.begin.size()) phase_ = Phase::kThought;
      return;
    case Phase::kThought:
      tail_.push_back(token);
      if (tail_.size() > gate_.end.size()) tail_.erase(tail_.begin());
      if (tail_ == gate_.end) phase_ = Phase::kAnswer;
      return;
    case Phase::kAnswer:
      break;
  }
  match_->accept(token);
}

bool GrammarConstraint::finished() const {
  return phase_ == Phase::kAnswer && match_->only_stop_follows();
}

Status GrammarConstraint::error() const {
  return phase_ == Phase::kAnswer ? match_->error() : Status();
}

}  // namespace zipage
