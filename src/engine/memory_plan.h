// How the memory is divided, derived once from configuration, model and device. Printed at start.
//
// Thread-safety: values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "compress/workspace.h"
#include "engine/swap_space.h"
#include "model/model_config.h"
#include "ops/ops.h"
#include "zipage/config.h"

namespace zipage {

// Entries beside a token's own log-probability, at most.
inline constexpr int kMaxTopLogprobs = 128;

struct MemoryPlan {
  int max_model_len = 0;
  int max_tokens_per_step = 0;
  int max_seqs_per_step = 0;
  int max_logit_rows = 0;
  std::vector<int> graph_sizes;  // numbers of decodes with a graph, ascending; empty = none
  int num_query_slots = 0;
  SwapShape swap;
  KvGeometry kv;
  CompressionShape compression;
  int query_stride = 1;

  struct Row {
    std::string name;
    int64_t bytes;
    std::string note;
    bool host = false;
  };
  std::vector<Row> rows;

  // Sampled tokens and their log-probabilities of one step.
  size_t result_bytes() const { return static_cast<size_t>(max_logit_rows) * (12 + 8 * kMaxTopLogprobs); }
  int64_t device_bytes() const;
  std::string table() const;
};

// Blocks of the KV pool; `other_bytes` of the device are spoken for, `useful_blocks` are as many as all requests can
// use. Errors name the number to lower, or to raise.
Result<int> choose_num_blocks(const EngineConfig& config, const BackendInfo& info, int64_t bytes_per_block,
                              int64_t other_bytes, int64_t useful_blocks);

// Errors name the number to lower, or to raise.
Result<MemoryPlan> plan_memory(const EngineConfig& config, const ModelConfig& model, const Backend& backend,
                               int64_t weight_bytes);

}  // namespace zipage
