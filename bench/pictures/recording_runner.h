// A runner that notes, after each compression, which positions every head kept. CPU backend, inline compression.
//
// Thread-safety: the engine's thread.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "engine/runner.h"

namespace zipage::pictures {

struct Snapshot {
  int length = 0;  // tokens computed before the compression
  // [num_layers * num_kv_heads][budget], ascending
  std::vector<std::vector<int>> kept;
};

class RecordingRunner final : public ModelRunner {
 public:
  RecordingRunner(std::unique_ptr<Runner> runner, std::vector<Snapshot>* snapshots)
      : runner_(std::move(runner)), snapshots_(snapshots) {}

  const MemoryPlan& plan() const override { return runner_->plan(); }
  void forward(const StepBatch& batch) override { runner_->forward(batch); }
  SampledTokens sample(const StepBatch& batch, const SamplingBatch& sampling, int top_logprobs) override {
    return runner_->sample(batch, sampling, top_logprobs);
  }
  CompressionJob compression_job(const Sequence& sequence, const CompressionPlan& plan) const override {
    return runner_->compression_job(sequence, plan);
  }
  void compress(const CompressionJob& job, bool in_lane) override {
    runner_->compress(job, in_lane);
    const KvGeometry& shape = job.kv.geometry;
    Snapshot snapshot{.length = job.logical_len, .kept = {}};
    for (int layer = 0; layer < shape.num_layers; ++layer) {
      for (int head = 0; head < shape.num_kv_heads; ++head) {
        std::vector<int>& kept = snapshot.kept.emplace_back();
        for (int slot = 0; slot < job.params.budget; ++slot) {
          const size_t block = to_size(job.targets[to_size(slot / shape.block_size)].value());
          const size_t row = (to_size(layer) * to_size(shape.num_blocks) + block) * to_size(shape.num_kv_heads);
          kept.push_back(
              job.kv.positions[(row + to_size(head)) * to_size(shape.block_size) + to_size(slot % shape.block_size)]);
        }
      }
    }
    snapshots_->push_back(std::move(snapshot));
  }
  void swap_blocks(std::span<const int32_t> blocks, std::span<const int32_t> host_blocks, bool to_host) override {
    runner_->swap_blocks(blocks, host_blocks, to_host);
  }
  void swap_ring(int query_slot, int host_ring, bool to_host) override {
    runner_->swap_ring(query_slot, host_ring, to_host);
  }
  int64_t swap_bytes_per_block() const override { return runner_->swap_bytes_per_block(); }

 private:
  template <typename Integer>
  static size_t to_size(Integer value) {
    return static_cast<size_t>(value);
  }

  std::unique_ptr<Runner> runner_;
  std::vector<Snapshot>* snapshots_;
};

}  // namespace zipage::pictures
