#include "batch.h"

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <unordered_map>

#include "interrupt.h"

namespace zipage::apps {
namespace {

struct Piece {
  size_t index;
  TextOutput output;
};

// From the engine's thread to the caller's.
class Mailbox {
 public:
  void put(Piece&& piece) {
    {
      const std::lock_guard lock(mutex_);
      pieces_.push_back(std::move(piece));
    }
    ready_.notify_one();
  }
  // What has come; waits a moment for something.
  std::vector<Piece> take() {
    std::unique_lock lock(mutex_);
    ready_.wait_for(lock, std::chrono::milliseconds(50), [this] { return !pieces_.empty(); });
    return std::exchange(pieces_, {});
  }

 private:
  std::mutex mutex_;
  std::condition_variable ready_;
  std::vector<Piece> pieces_;
};

class Run {
 public:
  Run(LLM& llm, const Batch& batch, Progress& progress) : llm_(llm), batch_(batch), progress_(progress) {
    const EngineConfig& config = llm.engine().config();
    window_ = static_cast<size_t>(config.max_num_seqs) * 4;
    if (config.max_queued_requests > 0) window_ = std::min(window_, static_cast<size_t>(config.max_queued_requests));
  }

  BatchSummary operator()() {
    using Clock = std::chrono::steady_clock;
    const Clock::time_point start = Clock::now();
    while (next_ < batch_.size || !live_.empty()) {
      if (InterruptGuard::interrupted() && !summary_.interrupted) stop();
      while (!summary_.interrupted && next_ < batch_.size && live_.size() < window_) submit(next_++);
      for (Piece& piece : mailbox_->take()) receive(std::move(piece));
      progress_.update(summary_.succeeded + summary_.failed, summary_.output_tokens);
    }
    summary_.seconds = std::chrono::duration<double>(Clock::now() - start).count();
    return summary_;
  }

 private:
  struct Live {
    std::string request_id;
    BatchResult result;
  };

  void submit(size_t index) {
    Result<TextRequest> request = batch_.make(index);
    if (!request.ok()) return fail(index, request.status());
    // The entry is there before the first piece can come.
    live_[index];
    Result<std::string> id = llm_.submit(*std::move(request), [mailbox = mailbox_, index](TextOutput&& output) {
      mailbox->put({index, std::move(output)});
    });
    if (!id.ok()) {
      live_.erase(index);
      return fail(index, id.status());
    }
    live_[index].request_id = *std::move(id);
  }

  void fail(size_t index, Status status) {
    ++summary_.failed;
    BatchResult result;
    result.error = std::move(status);
    batch_.done(index, std::move(result));
  }

  void receive(Piece&& piece) {
    BatchResult& result = live_.at(piece.index).result;
    RequestOutput& tokens = piece.output.tokens;
    summary_.output_tokens += static_cast<int64_t>(tokens.new_token_ids.size());
    result.text += piece.output.delta;
    result.token_ids.insert(result.token_ids.end(), tokens.new_token_ids.begin(), tokens.new_token_ids.end());
    std::move(tokens.logprobs.begin(), tokens.logprobs.end(), std::back_inserter(result.logprobs));
    if (!tokens.prompt_logprobs.empty()) result.prompt_logprobs = std::move(tokens.prompt_logprobs);
    if (batch_.delta && !piece.output.delta.empty()) batch_.delta(piece.index, piece.output.delta);
    if (!piece.output.finished()) return;
    result.last = std::move(piece.output);
    BatchResult finished = std::move(result);
    live_.erase(piece.index);
    if (finished.last.finish_reason == FinishReason::kAbort && summary_.interrupted) return;
    finished.error = finished.last.tokens.error;
    ++(finished.error.ok() ? summary_.succeeded : summary_.failed);
    batch_.done(piece.index, std::move(finished));
  }

  void stop() {
    summary_.interrupted = true;
    next_ = batch_.size;
    for (const auto& [index, live] : live_) llm_.abort(live.request_id);
  }

  LLM& llm_;
  const Batch& batch_;
  Progress& progress_;
  size_t window_ = 0, next_ = 0;
  std::unordered_map<size_t, Live> live_;
  // Shared with the sinks, which the engine may hold a moment longer than this run.
  std::shared_ptr<Mailbox> mailbox_ = std::make_shared<Mailbox>();
  BatchSummary summary_;
};

}  // namespace

BatchSummary run_batch(LLM& llm, const Batch& batch, Progress& progress) {
  return Run(llm, batch, progress)();
}

}  // namespace zipage::apps
