// A dense decoder's weights on a backend, loaded once, in the backend's own packed form.
//
// Thread-safety: immutable after load_weights().
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "load/model_files.h"
#include "model/model_config.h"
#include "ops/ops.h"

namespace zipage {

struct LayerWeights {
  std::unique_ptr<Linear> qkv;                 // [(num_heads + 2 * num_kv_heads) * head_dim, hidden]: q, k, v stacked
  std::unique_ptr<Linear> output;              // [hidden, num_heads * head_dim]
  std::unique_ptr<Linear> gate_up;             // [2 * intermediate, hidden]: gate, up stacked
  std::unique_ptr<Linear> down;                // [hidden, intermediate]
  const float* input_norm = nullptr;           // [hidden]
  const float* post_attention_norm = nullptr;  // [hidden]
  const float* q_norm = nullptr;               // [head_dim] or null
  const float* k_norm = nullptr;
  const float* qkv_bias = nullptr;  // [out_features] of each, or null
  const float* output_bias = nullptr;
  const float* gate_up_bias = nullptr;
  const float* down_bias = nullptr;
};

struct Weights {
  std::unique_ptr<Linear> embedding;  // [vocab, hidden]
  std::unique_ptr<Linear> lm_head;    // null when tied: embedding serves
  std::vector<LayerWeights> layers;
  const float* final_norm = nullptr;  // [hidden]
  int64_t num_parameters = 0;
  int64_t bytes = 0;

  const Linear& head() const { return lm_head ? *lm_head : *embedding; }
  std::vector<std::unique_ptr<Buffer>> vectors;  // owns the norms and biases
};

// Packs every tensor and gives the file's pages back as it goes. A missing or misshapen tensor is one sentence with
// its name, the expected and the found shape. Dummy files: seeded random weights of the right shapes.
// `progress`, if set, gets the fraction done.
Result<Weights> load_weights(Backend& backend, Queue& queue, const ModelFiles& files, const ModelConfig& config,
                             const std::function<void(double)>& progress = {});

}  // namespace zipage
