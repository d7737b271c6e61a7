// An engine whose tokens a test chooses. It owns no thread: run() hands out what play() was given until it is stopped.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "zipage/engine.h"

namespace zipage {

class FakeEngine final : public Engine {
 public:
  // What a request gets, piece by piece: tokens, and the reason in the last piece. After an abort the rest is dropped
  // and a piece with kAbort follows, one piece later, as from a step that was already running.
  struct Piece {
    std::vector<int32_t> tokens;
    FinishReason finish = FinishReason::kNone;
    std::optional<int32_t> stop_token_id = std::nullopt;
  };
  explicit FakeEngine(std::vector<int32_t> eos = {}) {
    info_.eos_token_ids = std::move(eos);
    info_.max_model_len = 64;
  }

  // What the next submitted request will get.
  void script(std::vector<Piece> pieces) {
    const std::lock_guard lock(mutex_);
    script_ = std::move(pieces);
  }
  void fail_next_run() {
    {
      const std::lock_guard lock(mutex_);
      throws_ = true;
    }
    wake();
  }

  Result<std::string> submit(Request request) override {
    {
      const std::lock_guard lock(mutex_);
      if (request.prompt_token_ids.empty()) return invalid_argument("empty prompt").with_param("prompt");
      last_request = request;
      live_[last_request.request_id] = {std::move(request), {script_.begin(), script_.end()}, 0};
    }
    wake();
    return last_request.request_id;
  }
  void abort(const std::string& id) override {
    {
      const std::lock_guard lock(mutex_);
      aborted.insert(id);
    }
    wake();
  }
  bool step() override { return deliver(); }
  bool has_work() const override { return false; }
  void run(const std::atomic<bool>& stop) override {
    while (!stop) {
      if (deliver()) continue;
      std::unique_lock lock(mutex_);
      if (throws_) throw std::runtime_error("device lost");
      changed_.wait_for(lock, std::chrono::milliseconds(20));
    }
  }
  void wake() override { changed_.notify_all(); }
  EngineStats stats() const override { return {}; }
  const ModelInfo& model() const override { return info_; }
  const EngineConfig& config() const override { return config_; }
  std::string memory_plan() const override { return {}; }
  void reset_prefix_cache() override {}

  Request last_request;
  std::set<std::string> aborted;

 private:
  struct Live {
    Request request;
    std::deque<Piece> pieces;
    int num_tokens = 0;
  };

  bool deliver() {
    std::vector<std::pair<OutputSink, RequestOutput>> due;
    {
      const std::lock_guard lock(mutex_);
      for (auto it = live_.begin(); it != live_.end();) {
        Live& live = it->second;
        RequestOutput out;
        out.request_id = it->first;
        if (aborted.contains(it->first)) {
          out.finish_reason = FinishReason::kAbort;
        } else if (live.pieces.empty()) {
          ++it;
          continue;
        } else {
          out.new_token_ids = live.pieces.front().tokens;
          out.finish_reason = live.pieces.front().finish;
          out.stop_token_id = live.pieces.front().stop_token_id;
          live.pieces.pop_front();
        }
        live.num_tokens += static_cast<int>(out.new_token_ids.size());
        out.num_output_tokens = live.num_tokens;
        out.kv_stats.compressions = 3;
        due.emplace_back(live.request.sink, out);
        it = out.finished() ? live_.erase(it) : std::next(it);
      }
    }
    for (auto& [sink, output] : due) sink(std::move(output));
    return !due.empty();
  }

  ModelInfo info_;
  EngineConfig config_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Piece> script_;
  std::map<std::string, Live> live_;
  bool throws_ = false;
};

}  // namespace zipage
