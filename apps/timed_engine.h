// An engine that notes how long each of its steps took. Everything else is the engine's own.
//
// Thread-safety: Engine's; take_step_seconds() may be called from any thread.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "zipage/engine.h"

namespace zipage::apps {

class TimedEngine : public Engine {
 public:
  explicit TimedEngine(std::unique_ptr<Engine> engine) : engine_(std::move(engine)) {}

  // Of the steps since the last call, in their order.
  std::vector<double> take_step_seconds();
  // The resident tokens of all running requests, summed over the steps since the last call: what attention read.
  int64_t take_resident_tokens();

  Result<std::string> submit(Request request) override;
  void abort(const std::string& request_id) override;
  bool step() override;
  bool has_work() const override { return engine_->has_work(); }
  void run(const std::atomic<bool>& stop) override;
  void wake() override;
  EngineStats stats() const override { return engine_->stats(); }
  const ModelInfo& model() const override { return engine_->model(); }
  const EngineConfig& config() const override { return engine_->config(); }
  std::string memory_plan() const override { return engine_->memory_plan(); }
  void reset_prefix_cache() override { engine_->reset_prefix_cache(); }

 private:
  std::unique_ptr<Engine> engine_;
  std::mutex mutex_;
  std::condition_variable woken_up_;
  bool woken_ = false;                // guarded by mutex_
  std::vector<double> step_seconds_;  // guarded by mutex_
  int64_t resident_tokens_ = 0;       // guarded by mutex_
};

}  // namespace zipage::apps
