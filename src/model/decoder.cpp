#include "model/decoder.h"

#include <cmath>

#include "base/check.h"

namespace zipage {
namespace {

size_t activation_size(DType dtype) {
  return static_cast<size_t>(traits(dtype).block_bytes);
}

int64_t qkv_width(const ModelConfig& config) {
  return int64_t{config.num_heads + 2 * config.num_kv_heads} * config.head_dim;
}

int64_t attention_width(const ModelConfig& config) {
  return int64_t{config.num_heads} * config.head_dim;
}

}  // namespace

Decoder::Decoder(Backend& backend, const ModelConfig& config, const Weights& weights, int max_tokens,
                 int max_logit_rows, int max_model_len, Queue& queue)
    : backend_(backend),
      config_(config),
      weights_(weights),
      activation_(backend.info().activation),
      attention_scale_(1.0F / std::sqrt(static_cast<float>(config.head_dim))),
      max_tokens_(max_tokens),
      max_logit_rows_(max_logit_rows) {
  const size_t element = activation_size(activation_);
  const auto reserve = [&](int64_t rows, int64_t cols, const char* what) {
    return backend_.allocate(static_cast<size_t>(rows * cols) * element, what);
  };
  hidden_ = reserve(max_tokens, config.hidden_size, "activations: hidden");
  residual_ = reserve(max_tokens, config.hidden_size, "activations: residual");
  qkv_ = reserve(max_tokens, qkv_width(config), "activations: qkv");
  attention_ = reserve(max_tokens, attention_width(config), "activations: attention");
  gate_up_ = reserve(max_tokens, 2 * int64_t{config.intermediate_size}, "activations: gate and up");
  ffn_ = reserve(max_tokens, config.intermediate_size, "activations: ffn");
  gathered_ = reserve(max_logit_rows, config.hidden_size, "activations: sampled rows");
  gathered_residual_ = reserve(max_logit_rows, config.hidden_size, "activations: sampled rows' residual");
  logits_ = backend_.allocate(
      static_cast<size_t>(max_logit_rows) * static_cast<size_t>(config.vocab_size) * sizeof(float), "logits");

  const std::vector<float> table = cos_sin_table(config, max_model_len);
  const size_t bytes = table.size() * sizeof(float);
  auto staging = backend_.allocate(bytes, "staging", MemoryKind::kPinnedHost);
  std::copy(table.begin(), table.end(), staging->as<float>());
  cos_sin_ = backend_.allocate(bytes, "rope table");
  backend_.upload(queue, cos_sin_->data(), staging->data(), bytes);
  queue.synchronize();
}

size_t Decoder::workspace_bytes(const ModelConfig& config, size_t activation_bytes, int max_tokens,
                                int max_logit_rows) {
  const int64_t per_token = 2 * int64_t{config.hidden_size} + qkv_width(config) + attention_width(config) +
                            3 * int64_t{config.intermediate_size};
  return static_cast<size_t>(per_token * max_tokens + 2 * int64_t{config.hidden_size} * max_logit_rows) *
             activation_bytes +
         static_cast<size_t>(config.vocab_size) * static_cast<size_t>(max_logit_rows) * sizeof(float);
}

Matrix Decoder::activation(const Buffer& buffer, int64_t rows, int64_t cols) const {
  return {.data = buffer.data(), .dtype = activation_, .rows = rows, .cols = cols, .stride = cols};
}

void Decoder::forward(Queue& queue, const BatchView& batch, const KvPool& kv, const QueryRing& ring, int num_layers) {
  ZIPAGE_CHECK(batch.num_tokens <= max_tokens_, "a batch of {} tokens, reserved for {}", batch.num_tokens, max_tokens_);
  const int64_t rows = batch.num_tokens;
  const Matrix hidden = activation(*hidden_, rows, config_.hidden_size);
  const Matrix residual = activation(*residual_, rows, config_.hidden_size);
  const Matrix qkv = activation(*qkv_, rows, qkv_width(config_));
  const Matrix attention = activation(*attention_, rows, attention_width(config_));
  const Matrix gate_up = activation(*gate_up_, rows, 2 * int64_t{config_.intermediate_size});
  const Matrix ffn = activation(*ffn_, rows, config_.intermediate_size);
  const float eps = config_.rms_norm_eps;

  // The embedding is the first residual; every later norm adds the branch's output to it.
  backend_.embedding(
      queue,
      {.table = weights_.embedding.get(), .token_ids = batch.token_ids, .sampled = batch.sampled, .out = residual});
  const LayerWeights& first = weights_.layers.front();
  backend_.rms_norm(queue, {.x = residual, .weight = first.input_norm, .eps = eps, .out = hidden});
  backend_.linear(queue, {.x = hidden, .weight = first.qkv.get(), .bias = first.qkv_bias, .out = qkv});
  for (int i = 0; i < num_layers; ++i) {
    const LayerWeights& layer = weights_.layers[static_cast<size_t>(i)];
    const LayerWeights* next = i + 1 < config_.num_layers ? &layer + 1 : nullptr;
    const QkvRopeAppendParams append{.qkv = qkv,
                                     .num_heads = config_.num_heads,
                                     .q_norm = layer.q_norm,
                                     .k_norm = layer.k_norm,
                                     .norm_eps = eps,
                                     .cos_sin = cos_sin(),
                                     .rotary_dim = config_.rope.rotary_dim,
                                     .layer = i,
                                     .batch = batch,
                                     .kv = kv,
                                     .ring = ring};
    backend_.append_and_attend(queue, append,
                               {.q = qkv,
                                .num_heads = config_.num_heads,
                                .scale = attention_scale_,
                                .layer = i,
                                .batch = batch,
                                .kv = kv,
                                .out = attention});
    DenseChainParams dense{.x = attention,
                           .residual = residual,
                           .output = {layer.output.get(), layer.output_bias},
                           .gate_up = {layer.gate_up.get(), layer.gate_up_bias},
                           .down = {layer.down.get(), layer.down_bias},
                           .norm = layer.post_attention_norm,
                           .eps = eps,
                           .hidden = hidden,
                           .gate_up_out = gate_up,
                           .ffn = ffn,
                           .qkv = qkv};
    if (next != nullptr) {
      dense.next_qkv = {next->qkv.get(), next->qkv_bias};
      dense.next_norm = next->input_norm;
    }
    backend_.dense_chain(queue, dense);
  }
}

Matrix Decoder::logits(Queue& queue, const int32_t* rows, int num_rows) {
  ZIPAGE_CHECK(num_rows <= max_logit_rows_, "logits of {} rows, reserved for {}", num_rows, max_logit_rows_);
  // Only sampled rows go through the last addition, the norm and the head.
  const Matrix normal = activation(*gathered_, num_rows, config_.hidden_size);
  Matrix branch = activation(*hidden_, num_rows, config_.hidden_size);
  Matrix sum = activation(*residual_, num_rows, config_.hidden_size);
  if (rows != nullptr) {
    const auto gathered = [&](const Buffer& from, const Matrix& out) {
      backend_.gather_rows(queue, {.x = activation(from, max_tokens_, config_.hidden_size), .rows = rows, .out = out});
      return out;
    };
    branch = gathered(*hidden_, normal);
    sum = gathered(*residual_, activation(*gathered_residual_, num_rows, config_.hidden_size));
  }
  backend_.rms_norm(
      queue, {.x = branch, .residual = sum, .weight = weights_.final_norm, .eps = config_.rms_norm_eps, .out = normal});
  const Matrix out{.data = logits_->data(),
                   .dtype = DType::kF32,
                   .rows = num_rows,
                   .cols = config_.vocab_size,
                   .stride = config_.vocab_size};
  backend_.linear(queue, {.x = normal, .weight = &weights_.head(), .out = out});
  return out;
}

}  // namespace zipage
