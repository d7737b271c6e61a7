// Threads that make token masks beside the forward pass.
//
// Thread-safety: post() may be called from any thread. What is posted may hold the last reference to the workers.
#pragma once

#include <functional>
#include <memory>
#include <thread>
#include <vector>

namespace zipage {

class MaskWorkers {
 public:
  explicit MaskWorkers(int threads);
  ~MaskWorkers();
  void post(std::function<void()> job);

 private:
  struct Queue;
  std::shared_ptr<Queue> queue_;
  std::vector<std::thread> threads_;
};

}  // namespace zipage
