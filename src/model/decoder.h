// The forward pass of a dense decoder over a flattened batch. One class for all architectures: they differ by fields of
// ModelConfig and by which weights are there.
//
// Thread-safety: one thread at a time.
#pragma once

#include <memory>
#include <vector>

#include "model/model_config.h"
#include "model/weights.h"
#include "ops/ops.h"

namespace zipage {

class Decoder {
 public:
  // Reserves activations for `max_tokens` tokens and logits for `max_logit_rows` rows.
  Decoder(Backend& backend, const ModelConfig& config, const Weights& weights, int max_tokens, int max_logit_rows,
          int max_model_len, Queue& queue);

  // Computes all tokens of the batch, stores their K and V, leaves their final hidden states inside.
  void forward(Queue& queue, const BatchView& batch, const KvPool& kv, const QueryRing& ring) {
    forward(queue, batch, kv, ring, config_.num_layers);
  }
  // The first layer alone, in which every op meets the batch's shapes.
  void warm_up(Queue& queue, const BatchView& batch, const KvPool& kv, const QueryRing& ring) {
    forward(queue, batch, kv, ring, 1);
  }

  // Logits of the tokens `rows` (device, indices into the last batch; null: its first ones) -> fp32 [num_rows, vocab],
  // valid until the next call. Once a batch: the last branch may be added to the residual in place.
  // REQUIRES: num_rows <= max_logit_rows
  Matrix logits(Queue& queue, const int32_t* rows, int num_rows);

  const float* cos_sin() const { return cos_sin_->as<float>(); }
  float attention_scale() const { return attention_scale_; }
  static size_t workspace_bytes(const ModelConfig& config, size_t activation_bytes, int max_tokens, int max_logit_rows);

 private:
  void forward(Queue& queue, const BatchView& batch, const KvPool& kv, const QueryRing& ring, int num_layers);
  Matrix activation(const Buffer& buffer, int64_t rows, int64_t cols) const;

  Backend& backend_;
  const ModelConfig& config_;
  const Weights& weights_;
  DType activation_;
  float attention_scale_;
  int max_tokens_, max_logit_rows_;
  std::unique_ptr<Buffer> cos_sin_;  // [max_model_len, rotary_dim]
  std::unique_ptr<Buffer> hidden_, residual_, qkv_, attention_, gate_up_, ffn_, gathered_, gathered_residual_, logits_;
};

}  // namespace zipage
