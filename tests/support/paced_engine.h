// An engine that computes nothing: every running request gets one token a step, at a steady pace. What is left of the
// time is the server's.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "zipage/engine.h"

namespace zipage {

class PacedEngine final : public Engine {
 public:
  struct Options {
    std::chrono::microseconds step{40'000};  // 0 = as fast as it goes
    // The token of a step. Called at its beginning, before any request gets it.
    std::function<int32_t(int64_t step)> token = [](int64_t) { return 'x'; };
    ModelInfo model;
  };
  explicit PacedEngine(Options options) : options_(std::move(options)) {
    options_.model.name = "paced";
    if (options_.model.vocab_size == 0) options_.model.vocab_size = 256;
    if (options_.model.max_model_len == 0) options_.model.max_model_len = 1 << 20;
  }

  Result<std::string> submit(Request request) override {
    if (request.prompt_token_ids.empty()) return invalid_argument("the prompt has no tokens").with_param("prompt");
    const std::lock_guard lock(mutex_);
    std::string id = request.request_id;
    arrived_.push_back(std::move(request));
    changed_.notify_one();
    return id;
  }
  void abort(const std::string& id) override {
    const std::lock_guard lock(mutex_);
    aborted_.push_back(id);
    changed_.notify_one();
  }

  bool step() override {
    std::vector<std::string> aborted;
    {
      const std::lock_guard lock(mutex_);
      for (Request& request : arrived_) {
        const std::string id = request.request_id;
        live_.emplace(id, Live{std::move(request), 0});
      }
      arrived_.clear();
      aborted.swap(aborted_);
    }
    for (const std::string& id : aborted) {
      const auto found = live_.find(id);
      if (found == live_.end()) continue;
      give(found->second, {}, FinishReason::kAbort);
      live_.erase(found);
    }
    if (live_.empty()) return false;
    const int32_t token = options_.token(num_steps_++);
    for (auto it = live_.begin(); it != live_.end();) {
      Live& live = it->second;
      const bool last = ++live.num_tokens == live.request.sampling.max_tokens;
      give(live, {token}, last ? FinishReason::kLength : FinishReason::kNone);
      it = last ? live_.erase(it) : std::next(it);
    }
    return !live_.empty();
  }
  bool has_work() const override { return !live_.empty(); }
  void run(const std::atomic<bool>& stop) override {
    auto next = std::chrono::steady_clock::now();
    while (!stop) {
      const bool worked = step();
      next = std::max(next + options_.step, std::chrono::steady_clock::now());
      if (worked) {
        if (options_.step.count() > 0) std::this_thread::sleep_until(next);
        continue;
      }
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return stop || !arrived_.empty() || !aborted_.empty(); });
    }
  }
  void wake() override {
    const std::lock_guard lock(mutex_);
    changed_.notify_one();
  }

  EngineStats stats() const override { return {}; }
  const ModelInfo& model() const override { return options_.model; }
  const EngineConfig& config() const override { return config_; }
  std::string memory_plan() const override { return {}; }
  void reset_prefix_cache() override {}

 private:
  struct Live {
    Request request;
    int num_tokens = 0;
  };
  static void give(const Live& live, std::vector<int32_t> tokens, FinishReason reason) {
    RequestOutput output;
    output.request_id = live.request.request_id;
    output.new_token_ids = std::move(tokens);
    output.finish_reason = reason;
    output.num_prompt_tokens = static_cast<int>(live.request.prompt_token_ids.size());
    output.num_output_tokens = live.num_tokens;
    live.request.sink(std::move(output));
  }

  Options options_;
  EngineConfig config_;
  std::map<std::string, Live> live_;  // the engine's thread
  int64_t num_steps_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Request> arrived_;      // guarded by mutex_
  std::vector<std::string> aborted_;  // guarded by mutex_
};

}  // namespace zipage
