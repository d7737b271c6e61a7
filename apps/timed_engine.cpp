#include "timed_engine.h"

#include <chrono>
#include <utility>

namespace zipage::apps {

std::vector<double> TimedEngine::take_step_seconds() {
  const std::lock_guard lock(mutex_);
  return std::exchange(step_seconds_, {});
}

int64_t TimedEngine::take_resident_tokens() {
  const std::lock_guard lock(mutex_);
  return std::exchange(resident_tokens_, 0);
}

Result<std::string> TimedEngine::submit(Request request) {
  Result<std::string> id = engine_->submit(std::move(request));
  wake();
  return id;
}

void TimedEngine::abort(const std::string& request_id) {
  engine_->abort(request_id);
  wake();
}

bool TimedEngine::step() {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point start = Clock::now();
  const bool more = engine_->step();
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  const int64_t resident = engine_->stats().kv_resident_tokens;
  const std::lock_guard lock(mutex_);
  step_seconds_.push_back(seconds);
  resident_tokens_ += resident;
  return more;
}

void TimedEngine::run(const std::atomic<bool>& stop) {
  while (!stop.load()) {
    if (has_work()) {
      step();
      continue;
    }
    std::unique_lock lock(mutex_);
    woken_up_.wait(lock, [this] { return woken_; });
    woken_ = false;
  }
}

void TimedEngine::wake() {
  {
    const std::lock_guard lock(mutex_);
    woken_ = true;
  }
  woken_up_.notify_one();
}

}  // namespace zipage::apps
