// An EngineImpl over a ScriptedRunner, and requests whose right answers are known beforehand.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/engine_impl.h"
#include "support/scripted_runner.h"

namespace zipage {

inline EngineConfig scripted_config() {
  EngineConfig config;
  config.block_size = 16;
  config.max_num_seqs = 8;
  config.max_num_batched_tokens = 64;
  config.compression.kv_budget = 0;
  config.compression.kv_slack = 16;
  config.compression.query_window = 4;
  config.compression_mode = CompressionMode::kInline;
  return config;
}

inline ScriptedOptions scripted_options(const EngineConfig& config, int num_blocks) {
  return {.num_blocks = num_blocks,
          .block_size = config.block_size,
          .num_query_slots = config.query_slots.value_or(config.max_num_seqs),
          .num_swap_blocks = 0,
          .num_swap_rings = config.max_num_seqs,
          .max_tokens_per_step = config.max_num_batched_tokens,
          .window = config.compression.query_window,
          .query_stride = resolve(config.compression).query_stride};
}

inline std::unique_ptr<EngineImpl> scripted_engine(const EngineConfig& config, const ScriptedOptions& options) {
  ModelInfo info;
  info.name = "scripted";
  info.vocab_size = options.vocab_size;
  info.max_model_len = options.max_model_len;
  return std::make_unique<EngineImpl>(config, info, std::make_unique<ScriptedRunner>(options));
}

// A client of one request: collects what comes and knows what should.
struct Client {
  std::vector<int32_t> prompt;
  int max_tokens = 0;
  std::vector<int32_t> got;
  std::vector<TokenLogprobs> logprobs;
  RequestOutput last;
  int num_finished = 0;

  Request request() {
    Request request;
    request.prompt_token_ids = prompt;
    request.sampling.temperature = 0;
    request.sampling.max_tokens = max_tokens;
    request.sink = [this](RequestOutput&& output) {
      got.insert(got.end(), output.new_token_ids.begin(), output.new_token_ids.end());
      logprobs.insert(logprobs.end(), output.logprobs.begin(), output.logprobs.end());
      num_finished += output.finished();
      last = std::move(output);
    };
    return request;
  }

  std::vector<int32_t> expected(int count, int vocab_size) const {
    std::vector<int32_t> tokens = prompt;
    for (int i = 0; i < count; ++i) tokens.push_back(ScriptedRunner::hashed_next_token(tokens, vocab_size));
    return {tokens.begin() + static_cast<ptrdiff_t>(prompt.size()), tokens.end()};
  }
};

}  // namespace zipage
