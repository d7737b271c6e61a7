// A served model whose outputs the prompts themselves choose, so that tests can assert exact bytes.
//
// A prompt that holds SAY[text] is answered with that text and the end of the text; IDS[1,2,3] with these token ids and
// then the end; LOOP[text] with the text again and again. Anything else is answered with the scripted runner's hash.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "engine/engine_impl.h"
#include "support/scripted_engine.h"
#include "text/text_model.h"

namespace zipage {

inline constexpr int32_t kScriptEnd = 611;  // the reasoner's <|im_end|>

// Stops the engine's thread where a token is made, until a test lets it go on.
class Brake {
 public:
  void hold() { set(true); }
  void release() { set(false); }
  void pass() {
    std::unique_lock lock(mutex_);
    ++num_waiting_;
    changed_.notify_all();
    changed_.wait(lock, [this] { return !held_; });
    --num_waiting_;
  }
  // The engine stands at the brake.
  void wait_until_reached() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return held_ && num_waiting_ > 0; });
  }

 private:
  void set(bool held) {
    const std::lock_guard lock(mutex_);
    held_ = held;
    changed_.notify_all();
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  bool held_ = false;
  int num_waiting_ = 0;
};

struct ScriptedModelOptions {
  EngineConfig config = scripted_config();
  int num_blocks = 256;
  int max_model_len = 1024;
  std::function<void()> before_token;  // on the engine's thread, for each token that is made
  std::function<void()> before_batch;  // there, for each batch: of prompts' chunks too
};

// An LLM with the reasoner's tokenizer and chat template, whose token ids below 256 are bytes.
std::unique_ptr<LLM> scripted_llm(ScriptedModelOptions options = {});

}  // namespace zipage
