#include "base/task_threads.h"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <utility>

#include "base/thread_role.h"

namespace zipage {

struct TaskThreads::Queue {
  std::mutex mutex;
  std::condition_variable ready;
  std::deque<std::function<void()>> jobs;  // guarded by mutex
  bool stop = false;                       // guarded by mutex

  void run() {
    name_thread("zipage-task");
    wake_without_preempting();
    std::unique_lock lock(mutex);
    while (true) {
      ready.wait(lock, [this] { return stop || !jobs.empty(); });
      if (stop) return;
      auto job = std::move(jobs.front());
      jobs.pop_front();
      lock.unlock();
      job();
      job = nullptr;
      lock.lock();
    }
  }
};

TaskThreads::TaskThreads(int threads) : queue_(std::make_shared<Queue>()) {
  for (int i = 0; i < threads; ++i) threads_.emplace_back([queue = queue_] { queue->run(); });
}

TaskThreads::~TaskThreads() {
  std::deque<std::function<void()>> dropped;
  {
    const std::lock_guard lock(queue_->mutex);
    queue_->stop = true;
    dropped.swap(queue_->jobs);
  }
  queue_->ready.notify_all();
  for (std::thread& thread : threads_) {
    // A job that held the last reference ends the workers from one of their own threads.
    if (thread.get_id() == std::this_thread::get_id()) {
      thread.detach();
    } else {
      thread.join();
    }
  }
}

void TaskThreads::post(std::function<void()> job) {
  {
    const std::lock_guard lock(queue_->mutex);
    queue_->jobs.push_back(std::move(job));
  }
  queue_->ready.notify_one();
}

}  // namespace zipage
