// A runner that notes, after each compression, which positions every head kept. CPU backend, inline compression.
//
// Thread-safety: the engine's thread.
#pragma once

#include <functional>
#include <memory>
#include <span>
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
  void launch(const StepBatch& batch, const SamplingBatch& sampling, int top_logprobs) override {
    runner_->launch(batch, sampling, top_logprobs);
  }
  SampledTokens collect() override { return runner_->collect(); }
  void abandon() override { runner_->abandon(); }
  std::function<void()> compression(const Sequence& sequence, const CompressionPlan& plan, bool in_lane) override {
    return [this, compress = runner_->compression(sequence, plan, in_lane), targets = plan.targets,
            length = sequence.num_computed, budget = sequence.compression.budget] {
      compress();
      snapshots_->push_back(snapshot(targets, length, budget));
    };
  }
  void swap_blocks(std::span<const int32_t> blocks, std::span<const int32_t> host_blocks, bool to_host) override {
    runner_->swap_blocks(blocks, host_blocks, to_host);
  }
  void swap_ring(int query_slot, int host_ring, bool to_host) override {
    runner_->swap_ring(query_slot, host_ring, to_host);
  }
  int64_t swap_bytes_per_block() const override { return runner_->swap_bytes_per_block(); }

 private:
  Snapshot snapshot(std::span<const BlockId> blocks, int length, int budget) const {
    const KvPool& kv = runner_->kv();
    const KvGeometry& shape = kv.geometry;
    Snapshot snapshot{.length = length, .kept = {}};
    for (int layer = 0; layer < shape.num_layers; ++layer) {
      for (int head = 0; head < shape.num_kv_heads; ++head) {
        std::vector<int>& kept = snapshot.kept.emplace_back();
        for (int slot = 0; slot < budget; ++slot) {
          const size_t block = to_size(blocks[to_size(slot / shape.block_size)].value());
          const size_t row = (to_size(layer) * to_size(shape.num_blocks) + block) * to_size(shape.num_kv_heads);
          kept.push_back(
              kv.positions[(row + to_size(head)) * to_size(shape.block_size) + to_size(slot % shape.block_size)]);
        }
      }
    }
    return snapshot;
  }

  template <typename Integer>
  static size_t to_size(Integer value) {
    return static_cast<size_t>(value);
  }

  std::unique_ptr<Runner> runner_;
  std::vector<Snapshot>* snapshots_;
};

}  // namespace zipage::pictures
