// A few threads that run tasks in the order they come: work that must not hold up whoever asks for it.
//
// Thread-safety: post() may be called from any thread. A task may hold the last reference to the threads
// themselves. Tasks that have not begun when they end are dropped.
#pragma once

#include <functional>
#include <memory>
#include <thread>
#include <vector>

namespace zipage {

class TaskThreads {
 public:
  explicit TaskThreads(int threads);
  ~TaskThreads();
  void post(std::function<void()> job);

 private:
  struct Queue;
  std::shared_ptr<Queue> queue_;
  std::vector<std::thread> threads_;
};

}  // namespace zipage
