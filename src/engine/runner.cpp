#include "engine/runner.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"

namespace zipage {
namespace {

constexpr int kMaxTopLogprobs = 128;

size_t batch_staging_bytes(const MemoryPlan& plan, int max_num_seqs) {
  const size_t tokens = static_cast<size_t>(plan.max_tokens_per_step);
  const size_t seqs = static_cast<size_t>(max_num_seqs) + 2;
  const size_t blocks = static_cast<size_t>(plan.compression.max_slots / plan.kv.block_size) + 1;
  return (tokens * 4 + seqs * 2 + seqs * blocks + static_cast<size_t>(plan.max_logit_rows)) * sizeof(int32_t) + 4096;
}

// Histories, biases and masks can be as large as requests make them; ordinary batches need little.
size_t sampling_staging_bytes(const SamplingBatch& batch) {
  return static_cast<size_t>(batch.rows() + 1) * 64 +
         (batch.history_ids.size() * 2 + batch.bias_ids.size() * 2 + batch.allowed.size()) * 4 + 4096;
}

}  // namespace

Runner::Runner(const EngineConfig& config, std::unique_ptr<Backend> backend, const ModelConfig& model)
    : config_(config),
      model_(model),
      backend_(std::move(backend)),
      queue_(backend_->make_queue(QueuePriority::kNormal)),
      lane_queue_(backend_->make_queue(QueuePriority::kLow)) {}

Result<std::unique_ptr<Runner>> Runner::create(const EngineConfig& config, std::unique_ptr<Backend> backend,
                                               const ModelFiles& files, const ModelConfig& model,
                                               const std::function<void(double)>& progress) {
  std::unique_ptr<Runner> runner(new Runner(config, std::move(backend), model));
  Backend& device = *runner->backend_;
  ZIPAGE_ASSIGN_OR_RETURN(runner->weights_, load_weights(device, *runner->queue_, files, model, progress));
  ZIPAGE_ASSIGN_OR_RETURN(runner->plan_, plan_memory(config, model, device, runner->weights_.bytes));
  const MemoryPlan& plan = runner->plan_;

  runner->decoder_ = std::make_unique<Decoder>(device, runner->model_, runner->weights_, plan.max_tokens_per_step,
                                               plan.max_logit_rows, plan.max_model_len, *runner->queue_);
  const KvGeometry& kv = plan.kv;
  const size_t slots = static_cast<size_t>(kv.num_layers) * kv.num_blocks * kv.num_kv_heads * kv.block_size;
  runner->kv_data_ = device.allocate(device.kv_bytes_per_block(kv) * kv.num_layers * kv.num_blocks, "KV blocks");
  runner->kv_scores_ = device.allocate(slots * sizeof(float), "scores");
  runner->kv_positions_ = device.allocate(slots * sizeof(int32_t), "positions");
  runner->kv_ = {.geometry = kv,
                 .data = runner->kv_data_->data(),
                 .scores = runner->kv_scores_->as<float>(),
                 .positions = runner->kv_positions_->as<int32_t>()};

  const int window = plan.compression.window;
  const size_t element = static_cast<size_t>(traits(device.info().activation).block_bytes);
  runner->ring_bytes_ = static_cast<size_t>(kv.num_layers) * window * model.num_heads * model.head_dim * element;
  if (plan.num_query_slots > 0) {
    runner->ring_data_ = device.allocate(runner->ring_bytes_ * plan.num_query_slots, "query slots");
    runner->ring_ = {.data = runner->ring_data_->data(), .num_query_slots = plan.num_query_slots, .window = window};
  }
  runner->workspace_ = std::make_unique<CompressionWorkspace>(device, plan.compression);
  if (plan.num_swap_blocks > 0) {
    runner->swap_data_ = device.allocate(device.swap_bytes_per_block(kv) * static_cast<size_t>(plan.num_swap_blocks),
                                         "swap space", MemoryKind::kPinnedHost);
    runner->swap_rings_ = device.allocate(runner->ring_bytes_ * static_cast<size_t>(plan.num_swap_rings),
                                          "swapped queries", MemoryKind::kPinnedHost);
  }
  runner->inputs_ =
      std::make_unique<StagingArena>(device, batch_staging_bytes(plan, config.max_num_seqs), "step inputs");
  const size_t result_bytes = static_cast<size_t>(plan.max_logit_rows) * (4 + 4 + 4 + 8 * kMaxTopLogprobs) + 4096;
  runner->results_ = device.allocate(result_bytes, "sampled tokens");
  runner->results_host_ = device.allocate(result_bytes, "sampled tokens", MemoryKind::kPinnedHost);
  return runner;
}

void Runner::forward(const StepBatch& batch) {
  inputs_->reset();
  const BatchView view = batch.view(*inputs_);
  inputs_->upload(*queue_);
  decoder_->forward(*queue_, view, kv_, ring_);
}

SampledTokens Runner::sample(const StepBatch& batch, const SamplingBatch& sampling, int top_logprobs) {
  SampledTokens result;
  const int num_rows = static_cast<int>(batch.logit_rows.size());
  const int num_sampled = batch.num_sampled;
  if (num_rows == 0) return result;
  ZIPAGE_CHECK(sampling.rows() == num_sampled, "{} sampling rows for {} sampled chunks", sampling.rows(), num_sampled);

  const size_t staging = sampling_staging_bytes(sampling) + static_cast<size_t>(num_rows) * 8;
  if (sampling_inputs_ == nullptr) {
    sampling_inputs_ = std::make_unique<StagingArena>(*backend_, std::max<size_t>(staging, 1 << 20), "sampling inputs");
  } else if (!sampling_inputs_->fits(staging)) {
    queue_->synchronize();
    sampling_inputs_ = std::make_unique<StagingArena>(*backend_, 2 * staging, "sampling inputs");
  }
  StagingArena& arena = *sampling_inputs_;
  arena.reset();
  const auto put = [&arena]<typename T>(const std::vector<T>& values) { return arena.put(std::span<const T>(values)); };
  const int32_t* rows = put(batch.logit_rows);
  auto* tokens = results_->as<int32_t>();
  // Device layout of the results: tokens | chosen logprob | rank | top ids | top logprobs.
  const size_t capacity = static_cast<size_t>(plan_.max_logit_rows);
  auto* chosen_logprobs = reinterpret_cast<float*>(tokens + capacity);
  auto* ranks = tokens + 2 * capacity;
  auto* top_ids = tokens + 3 * capacity;
  auto* top_values = reinterpret_cast<float*>(top_ids + capacity * kMaxTopLogprobs);

  SampleParams params{.vocab = sampling.vocab,
                      .temperature = put(sampling.temperature),
                      .top_k = put(sampling.top_k),
                      .top_p = put(sampling.top_p),
                      .min_p = put(sampling.min_p),
                      .seed = put(sampling.seed),
                      .position = put(sampling.position),
                      .repetition_penalty = put(sampling.repetition_penalty),
                      .presence_penalty = put(sampling.presence_penalty),
                      .frequency_penalty = put(sampling.frequency_penalty),
                      .history_start = put(sampling.history_start),
                      .history_ids = put(sampling.history_ids),
                      .history_counts = put(sampling.history_counts),
                      .bias_start = put(sampling.bias_start),
                      .bias_ids = put(sampling.bias_ids),
                      .bias_values = put(sampling.bias_values),
                      .allowed = sampling.allowed.empty() ? nullptr : put(sampling.allowed),
                      .use_allowed = put(sampling.use_allowed),
                      .out_token = tokens};
  // Rows after the sampled ones: the tokens whose log-probabilities are asked for are known already.
  std::vector<int32_t> known(static_cast<size_t>(num_rows), -1);
  for (size_t i = 0; i < batch.scored.size(); ++i) {
    known[static_cast<size_t>(num_sampled) + i] =
        batch.scored[i].sequence->tokens[static_cast<size_t>(batch.scored[i].index)];
  }
  const int32_t* known_device = put(known);
  arena.upload(*queue_);

  Matrix logits = decoder_->logits(*queue_, rows, num_rows);
  if (num_sampled > 0) {
    params.logits = logits;
    params.logits.rows = num_sampled;
    backend_->sample(*queue_, params);
  }
  const bool want_logprobs = top_logprobs >= 0;
  if (want_logprobs) {
    ZIPAGE_CHECK(top_logprobs <= kMaxTopLogprobs, "{} log-probabilities a token", top_logprobs);
    const auto score = [&](int begin, int count, const int32_t* chosen) {
      Matrix part = logits;
      part.data = static_cast<float*>(logits.data) + begin * logits.stride;
      part.rows = count;
      backend_->logprobs(*queue_, {.logits = part,
                                   .vocab = sampling.vocab,
                                   .chosen = chosen,
                                   .top_n = top_logprobs,
                                   .out_chosen = chosen_logprobs + begin,
                                   .out_rank = ranks + begin,
                                   .out_top_ids = top_ids + begin * top_logprobs,
                                   .out_top = top_values + begin * top_logprobs});
    };
    if (num_sampled > 0) score(0, num_sampled, tokens);
    if (num_rows > num_sampled) score(num_sampled, num_rows - num_sampled, known_device + num_sampled);
  }

  const auto fetch = [&](const void* device, size_t bytes) {
    const size_t offset = static_cast<size_t>(static_cast<const std::byte*>(device) - results_->data());
    backend_->download(*queue_, results_host_->data() + offset, device, bytes);
    return results_host_->data() + offset;
  };
  const auto* host_tokens = reinterpret_cast<const int32_t*>(fetch(tokens, static_cast<size_t>(num_sampled) * 4));
  if (!want_logprobs) {
    queue_->synchronize();
    result.tokens.assign(host_tokens, host_tokens + num_sampled);
    return result;
  }
  const size_t n = static_cast<size_t>(num_rows);
  const size_t top = static_cast<size_t>(top_logprobs);
  const auto* host_chosen = reinterpret_cast<const float*>(fetch(chosen_logprobs, n * 4));
  const auto* host_ranks = reinterpret_cast<const int32_t*>(fetch(ranks, n * 4));
  const auto* host_ids = reinterpret_cast<const int32_t*>(fetch(top_ids, n * top * 4));
  const auto* host_values = reinterpret_cast<const float*>(fetch(top_values, n * top * 4));
  queue_->synchronize();
  result.tokens.assign(host_tokens, host_tokens + num_sampled);
  for (size_t i = 0; i < n; ++i) {
    TokenLogprobs entry{.token = i < static_cast<size_t>(num_sampled) ? host_tokens[i] : known[i],
                        .logprob = host_chosen[i],
                        .rank = host_ranks[i],
                        .top = {}};
    for (size_t k = 0; k < top; ++k) entry.top.emplace_back(host_ids[i * top + k], host_values[i * top + k]);
    result.logprobs.push_back(std::move(entry));
  }
  return result;
}

CompressionJob Runner::compression_job(const Sequence& sequence, const CompressionPlan& plan) const {
  return {.params = sequence.compression,
          .kv = kv_,
          .ring = ring_,
          .query_slot = sequence.query_slot->value(),
          .table = sequence.blocks,
          .targets = plan.targets,
          .num_slots = sequence.num_resident,
          .num_scored = sequence.num_scored,
          .logical_len = sequence.num_computed,
          .prompt_len = sequence.num_prompt};
}

void Runner::compress(const CompressionJob& job, bool in_lane) {
  Queue& queue = in_lane ? *lane_queue_ : *queue_;
  const CompressionModel model{.num_heads = model_.num_heads,
                               .scale = decoder_->attention_scale(),
                               .cos_sin = decoder_->cos_sin(),
                               .rotary_dim = model_.rope.rotary_dim};
  zipage::compress(*backend_, queue, model, job, *workspace_);
  queue.synchronize();
}

void Runner::swap_blocks(std::span<const int32_t> blocks, std::span<const int32_t> host_blocks, bool to_host) {
  backend_->swap(
      *queue_,
      {.kv = kv_, .blocks = blocks, .host_blocks = host_blocks, .host = swap_data_->data(), .to_host = to_host});
}

int64_t Runner::swap_bytes_per_block() const {
  return static_cast<int64_t>(backend_->swap_bytes_per_block(kv_.geometry));
}

void Runner::swap_ring(int query_slot, int host_ring, bool to_host) {
  backend_->swap_ring(*queue_, {.ring = ring_,
                                .num_layers = model_.num_layers,
                                .query_slot = query_slot,
                                .row_elements = int64_t{model_.num_heads} * model_.head_dim,
                                .host = swap_rings_->data() + ring_bytes_ * static_cast<size_t>(host_ring),
                                .to_host = to_host});
}

}  // namespace zipage
