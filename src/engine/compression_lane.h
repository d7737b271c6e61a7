// The only asynchrony about compression: one worker that runs jobs beside the batches, in order.
//
// Thread-safety: submit(), take_done() and wait() belong to the engine's thread.
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "base/ids.h"

namespace zipage {

class CompressionLane {
 public:
  struct Done {
    SequenceId sequence;
    double seconds;
    std::exception_ptr error;  // the job threw; what it wrote is undefined
  };

  CompressionLane();
  ~CompressionLane();  // finishes what was submitted

  void submit(SequenceId sequence, std::function<void()> job);
  std::vector<Done> take_done();
  // Until a job is done that take_done() has not returned. REQUIRES: num_jobs() > 0
  void wait();
  int num_jobs() const { return num_jobs_; }  // submitted and not yet taken

 private:
  void work();

  std::mutex mutex_;
  std::condition_variable submitted_, finished_;
  std::deque<std::pair<SequenceId, std::function<void()>>> queue_;
  std::vector<Done> done_;
  bool stopping_ = false;
  int num_jobs_ = 0;
  std::thread worker_;
};

}  // namespace zipage
