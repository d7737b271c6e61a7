// A TokenConstraint over one XGrammar matcher. After each token a worker moves the matcher on and makes the next mask,
// while the engine computes the next step; who needs the mask before a worker has begun makes it itself.
//
// Thread-safety: as TokenConstraint. Internal to src/grammar.
#pragma once

#include <xgrammar/xgrammar.h>

#include <condition_variable>
#include <memory>
#include <mutex>
#include <vector>

#include "base/task_threads.h"
#include "grammar/grammar.h"

namespace zipage {

class GrammarMatch : public std::enable_shared_from_this<GrammarMatch> {
 public:
  GrammarMatch(const xgrammar::CompiledGrammar& grammar, std::vector<int32_t> stop_ids, int vocab,
               std::shared_ptr<TaskThreads> workers);

  void accept(int32_t token);
  // Makes the mask in the background, when it is not there yet.
  void prepare();
  // [words] of the tokens that may come next; empty: all of them.
  const std::vector<uint32_t>& mask();
  bool only_stop_follows();
  bool accepts_first(int32_t token);
  Status error();

 private:
  enum class State : uint8_t { kIdle, kQueued, kRunning };
  void work(std::unique_lock<std::mutex>& lock);
  void catch_up();
  void wait_until_current(std::unique_lock<std::mutex>& lock);

  const std::vector<int32_t> stop_ids_;
  const int vocab_;
  const std::shared_ptr<TaskThreads> workers_;
  std::mutex mutex_;
  std::condition_variable idle_;
  State state_ = State::kIdle;    // guarded by mutex_
  std::vector<int32_t> pending_;  // guarded by mutex_
  // Of whoever set kRunning, else guarded by mutex_.
  std::vector<int32_t> taken_;
  xgrammar::GrammarMatcher matcher_;
  std::vector<uint32_t> mask_;
  bool current_ = false;  // mask_ is that of now
  bool all_allowed_ = false, only_stop_ = false;
  Status error_;
};

class GrammarConstraint final : public TokenConstraint {
 public:
  GrammarConstraint(std::shared_ptr<GrammarMatch> match, ThoughtGate gate, std::vector<int32_t> stop_ids);

  bool fill_mask(uint32_t* mask, int vocab) override;
  void accept(int32_t token) override;
  bool finished() const override;
  Status error() const override;

 private:
  enum class Phase : uint8_t { kEither, kBeginTag, kThought, kAnswer };
  void allow_all_but_stops(uint32_t* mask, int vocab) const;

  const std::shared_ptr<GrammarMatch> match_;
  const ThoughtGate gate_;
  const std::vector<int32_t> stop_ids_;
  Phase phase_;
  size_t begin_seen_ = 0;
  std::vector<int32_t> tail_;  // the thought's newest tokens, at most as many as the end tag has
};

}  // namespace zipage
