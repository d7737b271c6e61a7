// A model whose next tokens a test chooses, over a pool whose content it can prove.
//
// Instead of K and V every slot remembers which token of which text lies in it: per (layer, KV head) the position, and
// a hash of all tokens up to it (so a block shared by two requests proves that they agree on everything before).
// launch() fails the test when a sequence's table leads to anything else than its own text: a block that was given to
// somebody else too early, a compaction that lost order, a swap that mixed up blocks. Two heads keep different slots,
// as real ones do.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

#include "engine/model_runner.h"

namespace zipage {

struct ScriptedOptions {
  int vocab_size = 64;
  int num_blocks = 16;
  int block_size = 16;
  int num_query_slots = 8;
  int num_swap_blocks = 0;
  int num_swap_rings = 8;
  int max_model_len = 4096;
  int max_tokens_per_step = 256;
  int window = 4, query_stride = 1;
  // Called on the engine's thread before each batch, of prompts' chunks too.
  std::function<void()> before_batch;
  // The same before each compression, with the sequence as it is until then.
  std::function<void(const Sequence&, const CompressionPlan&)> before_compression;
  // The next token after this text of a sequence; default: a hash of the whole text, so any slip changes all that
  // follows.
  std::function<int32_t(const Sequence&, const std::vector<int32_t>& text)> next_token;
};

class ScriptedRunner final : public ModelRunner {
 public:
  explicit ScriptedRunner(ScriptedOptions options);

  const MemoryPlan& plan() const override { return plan_; }
  void launch(const StepBatch& batch, const SamplingBatch& sampling, int top_logprobs) override;
  SampledTokens collect() override;
  void abandon() override { launched_.clear(); }
  std::function<void()> compression(const Sequence& sequence, const CompressionPlan& plan, bool in_lane) override;
  void swap_blocks(std::span<const int32_t> blocks, std::span<const int32_t> host_blocks, bool to_host) override;
  void swap_ring(int query_slot, int host_ring, bool to_host) override;
  int64_t swap_bytes_per_block() const override { return 1; }

  // The default script.
  static int32_t hashed_next_token(const std::vector<int32_t>& tokens, int vocab_size);

 private:
  static constexpr int kHeads = 2;
  struct Cell {
    int32_t position = -1;
    uint64_t text = 0;  // hash of tokens [0, position]
    bool operator==(const Cell&) const = default;
  };
  Cell& cell(int block, int slot, int head) {
    return pool_[(static_cast<size_t>(block) * options_.block_size + slot) * kHeads + head];
  }
  // The sequence's tokens, with those that the batch before has sampled and nobody has collected.
  std::vector<int32_t> text_of(const Sequence& sequence) const;
  void verify(const Sequence& sequence, const std::vector<int32_t>& text, int num_slots, int num_computed);
  void forward(const StepBatch& batch);
  void compress(const CompressionJob& job);

  ScriptedOptions options_;
  MemoryPlan plan_;
  std::vector<Cell> pool_, swap_;
  std::vector<Cell> rings_, swap_rings_;  // [slots, window]
  std::deque<SampledTokens> launched_;
  std::vector<int32_t> sampled_;  // by the last batch
};

}  // namespace zipage
