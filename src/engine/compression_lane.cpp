#include "engine/compression_lane.h"

#include <chrono>

#include "base/thread_role.h"

namespace zipage {

CompressionLane::CompressionLane() : worker_([this] { work(); }) {}

CompressionLane::~CompressionLane() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  submitted_.notify_one();
  worker_.join();
}

void CompressionLane::submit(SequenceId sequence, std::function<void()> job) {
  {
    const std::lock_guard lock(mutex_);
    queue_.emplace_back(sequence, std::move(job));
  }
  ++num_jobs_;
  submitted_.notify_one();
}

std::vector<CompressionLane::Done> CompressionLane::take_done() {
  std::vector<Done> done;
  if (num_jobs_ == 0) return done;
  {
    const std::lock_guard lock(mutex_);
    done.swap(done_);
  }
  num_jobs_ -= static_cast<int>(done.size());
  return done;
}

void CompressionLane::wait() {
  std::unique_lock lock(mutex_);
  finished_.wait(lock, [this] { return !done_.empty(); });
}

void CompressionLane::work() {
  name_thread("zipage-compress");
  wake_without_preempting();
  std::unique_lock lock(mutex_);
  while (true) {
    submitted_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
    if (queue_.empty()) return;
    auto [sequence, job] = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    const auto begin = std::chrono::steady_clock::now();
    std::exception_ptr error;
    try {
      job();
    } catch (...) {
      error = std::current_exception();
    }
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    lock.lock();
    done_.push_back({sequence, seconds, error});
    finished_.notify_one();
  }
}

}  // namespace zipage
