#include "engine/runner.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/check.h"

namespace zipage {
namespace {

// Histories, biases and masks can be as large as requests make them; ordinary batches need little.
size_t sampling_staging_bytes(const SamplingBatch& batch, size_t num_rows) {
  return static_cast<size_t>(batch.rows() + 1) * 64 +
         (batch.history_ids.size() * 2 + batch.bias_ids.size() * 2 + batch.allowed.size() + num_rows * 2) * 4 + 4096;
}

bool counts_up_from_zero(const std::vector<int32_t>& rows) {
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i] != static_cast<int32_t>(i)) return false;
  }
  return true;
}

}  // namespace

Runner::Runner(const EngineConfig& config, std::unique_ptr<Backend> backend, const ModelConfig& model)
    : config_(config),
      model_(model),
      backend_(std::move(backend)),
      queue_(backend_->make_queue(QueuePriority::kNormal)),
      lane_queue_(backend_->make_queue(QueuePriority::kLow)) {}

Runner::~Runner() {
  try {
    queue_->synchronize();  // what was launched uses what is freed now
    lane_queue_->synchronize();
  } catch (const DeviceError&) {
    // The device is lost: nothing runs on it any more.
  }
}

void Runner::launch(const StepBatch& batch, const SamplingBatch& sampling, int top_logprobs) {
  ZIPAGE_CHECK(launched_.size() < results_host_.size(), "{} batches are not collected", launched_.size());
  auto begun = backend_->record(*queue_);
  Launched launched{.num_sampled = batch.num_sampled,
                    .num_rows = static_cast<int>(batch.logit_rows.size()),
                    .top_logprobs = top_logprobs};
  std::optional<SamplingInputs> inputs;
  if (launched.num_rows > 0) inputs = upload_sampling(batch, sampling, launched);
  forward(batch);
  if (inputs) sample(*inputs, sampling, launched);
  launched.begun = std::move(begun);
  launched.compressions = std::exchange(compressions_, {});
  launched.done = backend_->record(*queue_);
  launched_.push_back(std::move(launched));
}

void Runner::forward(const StepBatch& batch) {
  const bool all_decode = batch.num_decodes == static_cast<int>(batch.chunks.size());
  const auto graph = all_decode ? graphs_.lower_bound(batch.num_decodes) : graphs_.end();
  BatchView view = inputs_->upload(*queue_, batch, graph != graphs_.end() ? graph->first : 0);
  if (graph != graphs_.end()) {
    backend_->replay(*queue_, *graph->second);
    return;
  }
  view.sampled = results_in(results_->data()).tokens;
  decoder_->forward(*queue_, view, kv_, ring_);
}

Runner::SamplingInputs Runner::upload_sampling(const StepBatch& batch, const SamplingBatch& sampling,
                                               Launched& launched) {
  const int num_sampled = launched.num_sampled;
  ZIPAGE_CHECK(sampling.rows() == num_sampled, "{} sampling rows for {} sampled chunks", sampling.rows(), num_sampled);
  // Rows after the sampled ones: the tokens whose log-probabilities are asked for are known already.
  for (const StepBatch::ScoredToken& token : batch.scored) {
    launched.known.push_back(token.sequence->tokens[static_cast<size_t>(token.index)]);
  }
  const size_t staging = sampling_staging_bytes(sampling, batch.logit_rows.size());
  if (!sampling_inputs_->fits(staging)) {
    queue_->synchronize();
    sampling_inputs_ = std::make_unique<StagingArena>(*backend_, 2 * staging, "sampling inputs");
  }
  StagingArena& arena = *sampling_inputs_;
  arena.reset();
  const auto put = [&arena]<typename T>(const std::vector<T>& values) { return arena.put(std::span<const T>(values)); };
  // A step of decodes samples all of its tokens.
  const int32_t* rows = counts_up_from_zero(batch.logit_rows) ? nullptr : put(batch.logit_rows);
  const int32_t* known = put(launched.known);
  const Results results = results_in(results_->data());
  const SampleParams params{.vocab = sampling.vocab,
                            .temperature = put(sampling.temperature),
                            .top_k = put(sampling.top_k),
                            .top_p = put(sampling.top_p),
                            .min_p = put(sampling.min_p),
                            .seed = put(sampling.seed),
                            .position = put(sampling.position),
                            .repetition_penalty = put(sampling.repetition_penalty),
                            .presence_penalty = put(sampling.presence_penalty),
                            .frequency_penalty = put(sampling.frequency_penalty),
                            .history_start = sampling.history_ids.empty() ? nullptr : put(sampling.history_start),
                            .history_ids = put(sampling.history_ids),
                            .history_counts = put(sampling.history_counts),
                            .bias_start = sampling.bias_ids.empty() ? nullptr : put(sampling.bias_start),
                            .bias_ids = put(sampling.bias_ids),
                            .bias_values = put(sampling.bias_values),
                            .allowed = sampling.allowed.empty() ? nullptr : put(sampling.allowed),
                            .use_allowed = put(sampling.use_allowed),
                            .out_token = results.tokens};
  arena.upload(*queue_);
  return {.rows = rows, .known = known, .params = params};
}

void Runner::sample(const SamplingInputs& inputs, const SamplingBatch& sampling, Launched& launched) {
  const int num_sampled = launched.num_sampled, num_rows = launched.num_rows;
  const Results results = results_in(results_->data());
  const Matrix logits = decoder_->logits(*queue_, inputs.rows, num_rows);
  if (num_sampled > 0) {
    SampleParams params = inputs.params;
    params.logits = logits;
    params.logits.rows = num_sampled;
    backend_->sample(*queue_, params);
  }
  std::byte* host = results_host_[next_results_]->data();
  next_results_ = (next_results_ + 1) % results_host_.size();
  launched.results = host;
  const auto fetch = [&](const void* part, size_t bytes) {
    backend_->download(*queue_, host + (static_cast<const std::byte*>(part) - results_->data()), part, bytes);
  };
  fetch(results.tokens, static_cast<size_t>(num_sampled) * 4);
  const int top_n = launched.top_logprobs;
  if (top_n < 0) return;
  ZIPAGE_CHECK(top_n <= kMaxTopLogprobs, "{} log-probabilities a token", top_n);
  score(logits, 0, num_sampled, results.tokens, sampling.vocab, top_n);
  score(logits, num_sampled, num_rows - num_sampled, inputs.known, sampling.vocab, top_n);
  const auto n = static_cast<size_t>(num_rows);
  fetch(results.chosen, n * 4);
  fetch(results.ranks, n * 4);
  fetch(results.top_ids, n * static_cast<size_t>(top_n) * 4);
  fetch(results.top, n * static_cast<size_t>(top_n) * 4);
}

void Runner::score(const Matrix& logits, int begin, int count, const int32_t* chosen, int vocab, int top_n) {
  if (count == 0) return;
  const Results results = results_in(results_->data());
  Matrix part = logits;
  part.data = static_cast<float*>(logits.data) + begin * logits.stride;
  part.rows = count;
  backend_->logprobs(*queue_, {.logits = part,
                               .vocab = vocab,
                               .chosen = chosen,
                               .top_n = top_n,
                               .out_chosen = results.chosen + begin,
                               .out_rank = results.ranks + begin,
                               .out_top_ids = results.top_ids + begin * top_n,
                               .out_top = results.top + begin * top_n});
}

SampledTokens Runner::collect() {
  ZIPAGE_CHECK(!launched_.empty(), "nothing was launched");
  Launched launched = std::move(launched_.front());
  launched_.pop_front();
  launched.done->wait();
  SampledTokens sampled{.device_seconds = launched.done->seconds_since(*launched.begun)};
  for (const Span& span : launched.compressions) sampled.compression_seconds += span.end->seconds_since(*span.begin);
  if (last_done_) {
    sampled.idle_seconds = launched.begun->seconds_since(*last_done_) - sampled.compression_seconds;
  }
  last_done_ = std::move(launched.done);
  if (launched.num_rows == 0) return sampled;
  const Results results = results_in(const_cast<std::byte*>(launched.results));
  sampled.tokens.assign(results.tokens, results.tokens + launched.num_sampled);
  if (launched.top_logprobs < 0) return sampled;
  const auto top_n = static_cast<size_t>(launched.top_logprobs);
  const auto num_sampled = static_cast<size_t>(launched.num_sampled);
  for (size_t i = 0; i < static_cast<size_t>(launched.num_rows); ++i) {
    TokenLogprobs entry{.token = i < num_sampled ? results.tokens[i] : launched.known[i - num_sampled],
                        .logprob = results.chosen[i],
                        .rank = results.ranks[i],
                        .top = {}};
    for (size_t k = 0; k < top_n; ++k) {
      entry.top.emplace_back(results.top_ids[i * top_n + k], results.top[i * top_n + k]);
    }
    sampled.logprobs.push_back(std::move(entry));
  }
  return sampled;
}

void Runner::abandon() {
  last_done_.reset();
  compressions_.clear();
  launched_.clear();
}

Runner::Results Runner::results_in(std::byte* base) const {
  const auto rows = static_cast<size_t>(plan_.max_logit_rows);
  auto* words = reinterpret_cast<int32_t*>(base);
  return {.tokens = words,
          .chosen = reinterpret_cast<float*>(words + rows),
          .ranks = words + 2 * rows,
          .top_ids = words + 3 * rows,
          .top = reinterpret_cast<float*>(words + (3 + kMaxTopLogprobs) * rows)};
}

std::function<void()> Runner::compression(const Sequence& sequence, const CompressionPlan& plan, bool in_lane) {
  const CompressionJob job{.params = sequence.compression,
                           .kv = kv_,
                           .ring = ring_,
                           .query_slot = sequence.query_slot->value(),
                           .table = sequence.blocks,
                           .targets = plan.targets,
                           .num_retained = plan.num_retained,
                           .num_slots = sequence.num_resident,
                           .num_scored = sequence.num_scored,
                           .logical_len = sequence.num_computed,
                           .prompt_len = sequence.num_prompt};
  const std::shared_ptr<Event> launched = backend_->record(*queue_);
  return [this, job, launched, in_lane] {
    Queue& queue = in_lane ? *lane_queue_ : *queue_;
    if (in_lane) backend_->wait(queue, *launched);
    const CompressionModel model{.num_heads = model_.num_heads,
                                 .scale = decoder_->attention_scale(),
                                 .cos_sin = decoder_->cos_sin(),
                                 .rotary_dim = model_.rope.rotary_dim};
    compress(*backend_, queue, model, job, *workspace_);
    if (in_lane) {
      queue.synchronize();
    } else {
      compressions_.push_back({launched, backend_->record(queue)});
    }
  };
}

void Runner::swap_blocks(std::span<const int32_t> blocks, std::span<const int32_t> host_blocks, bool to_host) {
  swap_space_->move_blocks(blocks, host_blocks, to_host);
}

int64_t Runner::swap_bytes_per_block() const {
  return static_cast<int64_t>(backend_->swap_bytes_per_block(kv_.geometry));
}

void Runner::swap_ring(int query_slot, int host_ring, bool to_host) {
  swap_space_->move_ring(query_slot, host_ring, to_host);
}

}  // namespace zipage
