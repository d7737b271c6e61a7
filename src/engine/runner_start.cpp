// A Runner's beginning: weights, memory, and on a device with graphs their recording.
#include <algorithm>
#include <chrono>
#include <functional>

#include "base/log.h"
#include "engine/kv_scales.h"
#include "engine/runner.h"

namespace zipage {
namespace {

constexpr size_t kSamplingStagingBytes = size_t{1} << 20;  // grows where requests ask for more
constexpr int kLeastTunedChunk = 512;                      // tokens; smaller mixed batches are rare

}  // namespace

Result<std::unique_ptr<Runner>> Runner::create(const EngineConfig& config, std::unique_ptr<Backend> backend,
                                               const ModelFiles& files, const ModelConfig& model,
                                               const std::function<void(double)>& progress) {
  std::unique_ptr<Runner> runner(new Runner(config, std::move(backend), model));
  Backend& device = *runner->backend_;
  ZIPAGE_ASSIGN_OR_RETURN(runner->weights_, load_weights(device, *runner->queue_, files, model, progress));
  ZIPAGE_ASSIGN_OR_RETURN(runner->plan_, plan_memory(config, model, device, runner->weights_.bytes));
  runner->reserve(files.dummy());
  runner->warm_up(progress);
  return runner;
}

void Runner::reserve(bool made_up_kv) {
  Backend& device = *backend_;
  const BackendInfo info = device.info();
  decoder_ = std::make_unique<Decoder>(device, model_, weights_, plan_.max_tokens_per_step, plan_.max_logit_rows,
                                       plan_.max_model_len, *queue_);
  const KvGeometry& kv = plan_.kv;
  if (kv.dtype == DType::kF8E4M3) {
    const KvScales scales = calibrate_kv_scales(device, *queue_, *decoder_, kv, model_.vocab_size,
                                                std::min(plan_.max_tokens_per_step, plan_.max_model_len));
    const size_t heads = scales.k.size();
    const auto staging = device.allocate(2 * heads * sizeof(float), "staging", MemoryKind::kPinnedHost);
    std::ranges::copy(scales.k, staging->as<float>());
    std::ranges::copy(scales.v, staging->as<float>() + heads);
    kv_scales_ = device.allocate(2 * heads * sizeof(float), "scales of K and V");
    device.upload(*queue_, kv_scales_->data(), staging->data(), 2 * heads * sizeof(float));
    queue_->synchronize();
    kv_.k_scale = kv_scales_->as<float>();
    kv_.v_scale = kv_.k_scale + heads;
  }
  const size_t slots = static_cast<size_t>(kv.num_layers) * kv.num_blocks * kv.num_kv_heads * kv.block_size;
  kv_data_ = device.allocate(device.kv_bytes_per_block(kv) * kv.num_layers * kv.num_blocks, "KV blocks");
  kv_scores_ = device.allocate(slots * sizeof(float), "scores");
  kv_positions_ = device.allocate(slots * sizeof(int32_t), "positions");
  kv_.geometry = kv;
  kv_.data = kv_data_->data();
  kv_.scores = kv_scores_->as<float>();
  kv_.positions = kv_positions_->as<int32_t>();
  // Made-up weights over made-up KV: a benchmark may start in the middle, and zeros would flatter the device.
  if (made_up_kv && !info.host_accessible) {
    device.noise(*queue_, kv_data_->data(), kv.dtype, slots * 2 * static_cast<size_t>(kv.head_dim), 1.0F, 0);
    queue_->synchronize();
  }

  const int window = plan_.compression.window;
  const auto element = static_cast<size_t>(traits(info.activation).block_bytes);
  const size_t ring_bytes = static_cast<size_t>(kv.num_layers) * window * model_.num_heads * model_.head_dim * element;
  if (plan_.num_query_slots > 0) {
    ring_data_ = device.allocate(ring_bytes * plan_.num_query_slots, "query slots");
    ring_ = {.data = ring_data_->data(),
             .num_query_slots = plan_.num_query_slots,
             .window = window,
             .stride = plan_.query_stride};
  }
  workspace_ = std::make_unique<CompressionWorkspace>(device, plan_.compression);
  if (plan_.swap.num_blocks > 0) {
    swap_space_ = std::make_unique<SwapSpace>(device, *queue_, kv_, ring_, int64_t{model_.num_heads} * model_.head_dim,
                                              plan_.swap);
  }
  inputs_ = std::make_unique<StepInputs>(device, plan_.max_tokens_per_step, plan_.max_seqs_per_step,
                                         plan_.compression.max_slots / kv.block_size);
  sampling_inputs_ = std::make_unique<StagingArena>(device, kSamplingStagingBytes, "sampling inputs");
  const size_t result_bytes = plan_.result_bytes();
  results_ = device.allocate(result_bytes, "sampled tokens");
  for (auto& host : results_host_) host = device.allocate(result_bytes, "sampled tokens", MemoryKind::kPinnedHost);
}

void Runner::warm_up(const std::function<void(double)>& progress) {
  Backend& device = *backend_;
  if (!plan_.graph_sizes.empty()) {
    const auto begin = std::chrono::steady_clock::now();
    // The sizes with graphs, the widest chunk of a prompt and its halves: each op sees its shapes for the first time.
    std::vector<int> sizes = plan_.graph_sizes;
    for (int size = plan_.max_tokens_per_step; size >= kLeastTunedChunk; size /= 2) sizes.push_back(size);
    // Neighbouring sizes may share a choice: the largest of them is the one to make it.
    std::ranges::sort(sizes, std::greater());
    const auto padding = [&](int size, bool as_decodes) {
      BatchView view = inputs_->upload_padding(*queue_, size, as_decodes);
      view.sampled = results_in(results_->data()).tokens;
      return view;
    };
    const auto head = [&](int size) {
      sampling_inputs_->reset();
      const std::vector<int32_t> rows(static_cast<size_t>(size), 0);
      const int32_t* at = sampling_inputs_->put(std::span<const int32_t>(rows));
      sampling_inputs_->upload(*queue_);
      decoder_->logits(*queue_, at, size);
    };
    double done = 0;
    const double all = static_cast<double>(sizes.size() + plan_.graph_sizes.size());
    const auto advance = [&] {
      queue_->synchronize();
      if (progress) progress(++done / all);
    };
    for (int size : sizes) {
      const bool decodes = size <= plan_.graph_sizes.back();
      decoder_->warm_up(*queue_, padding(size, decodes), kv_, ring_);
      if (decodes && size <= plan_.max_logit_rows) head(size);
      advance();
    }
    for (int size : plan_.graph_sizes) {
      const BatchView view = padding(size, /*as_decodes=*/true);
      const auto work = [&] { decoder_->forward(*queue_, view, kv_, ring_); };
      if (auto graph = device.capture(*queue_, work)) graphs_.emplace(size, std::move(graph));
      advance();
    }
    log_info("{} graphs of decode steps, up to {} requests, recorded in {:.1f} s", graphs_.size(),
             plan_.graph_sizes.back(), std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  device.end_tuning();
}

}  // namespace zipage
