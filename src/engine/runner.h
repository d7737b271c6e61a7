// Everything that touches the device: weights, pool, rings, activations, swap space. Executes what was decided.
//
// Thread-safety: one thread, except that each CompressionLane's job may run on the lane's own thread.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "engine/model_runner.h"
#include "model/decoder.h"
#include "model/weights.h"

namespace zipage {

class Runner final : public ModelRunner {
 public:
  static Result<std::unique_ptr<Runner>> create(const EngineConfig& config, std::unique_ptr<Backend> backend,
                                                const ModelFiles& files, const ModelConfig& model,
                                                const std::function<void(double)>& progress);

  const MemoryPlan& plan() const override { return plan_; }
  void forward(const StepBatch& batch) override;
  SampledTokens sample(const StepBatch& batch, const SamplingBatch& sampling, int top_logprobs) override;
  CompressionJob compression_job(const Sequence& sequence, const CompressionPlan& plan) const override;
  void compress(const CompressionJob& job, bool in_lane) override;
  void swap_blocks(std::span<const int32_t> blocks, std::span<const int32_t> host_blocks, bool to_host) override;
  void swap_ring(int query_slot, int host_ring, bool to_host) override;
  int64_t swap_bytes_per_block() const override;

  Backend& backend() { return *backend_; }
  Queue& queue() { return *queue_; }
  const Weights& weights() const { return weights_; }
  const KvPool& kv() const { return kv_; }

 private:
  Runner(const EngineConfig& config, std::unique_ptr<Backend> backend, const ModelConfig& model);

  EngineConfig config_;
  ModelConfig model_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Queue> queue_, lane_queue_;
  Weights weights_;
  MemoryPlan plan_;
  std::unique_ptr<Decoder> decoder_;
  std::unique_ptr<Buffer> kv_data_, kv_scores_, kv_positions_, ring_data_;
  std::unique_ptr<Buffer> swap_data_, swap_rings_;
  size_t ring_bytes_ = 0;  // of one query slot
  KvPool kv_;
  QueryRing ring_;
  std::unique_ptr<CompressionWorkspace> workspace_;
  std::unique_ptr<StagingArena> inputs_, sampling_inputs_;
  std::unique_ptr<Buffer> results_, results_host_;  // sampled ids and log-probabilities
};

}  // namespace zipage
