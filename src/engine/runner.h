// Everything that touches the device: weights, pool, rings, activations, swap space, graphs. Executes what was decided.
//
// Batches of decodes alone are replayed from graphs where the backend has them, padded to the next recorded size; all
// others are launched op by op. Both find their inputs at the same addresses (StepInputs). What a batch samples lies in
// one place on the device, where the next batch looks for token ids that the host does not know yet.
//
// Thread-safety: one thread, except that each CompressionLane's job may run on the lane's own thread.
#pragma once

#include <array>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "engine/model_runner.h"
#include "engine/staging.h"
#include "engine/step_inputs.h"
#include "engine/swap_space.h"
#include "model/decoder.h"
#include "model/weights.h"

namespace zipage {

class Runner final : public ModelRunner {
 public:
  ~Runner() override;
  static Result<std::unique_ptr<Runner>> create(const EngineConfig& config, std::unique_ptr<Backend> backend,
                                                const ModelFiles& files, const ModelConfig& model,
                                                const std::function<void(double)>& progress);

  const MemoryPlan& plan() const override { return plan_; }
  void launch(const StepBatch& batch, const SamplingBatch& sampling, int top_logprobs) override;
  SampledTokens collect() override;
  void abandon() override;
  std::function<void()> compression(const Sequence& sequence, const CompressionPlan& plan, bool in_lane) override;
  void swap_blocks(std::span<const int32_t> blocks, std::span<const int32_t> host_blocks, bool to_host) override;
  void swap_ring(int query_slot, int host_ring, bool to_host) override;
  int64_t swap_bytes_per_block() const override;

  Backend& backend() { return *backend_; }
  Queue& queue() { return *queue_; }
  const ModelConfig& model() const { return model_; }
  const Weights& weights() const { return weights_; }
  const KvPool& kv() const { return kv_; }

 private:
  struct Span {
    std::shared_ptr<Event> begin, end;
  };
  // Of the last launched batches, the oldest first.
  struct Launched {
    int num_sampled = 0, num_rows = 0;
    int top_logprobs = -1;
    std::vector<int32_t> known;  // [num_rows - num_sampled] the tokens of the rows that are scored
    const std::byte* results = nullptr;
    std::unique_ptr<Event> begun, done;
    std::vector<Span> compressions;  // before it
  };
  // Where the parts of the results lie, on the device and on the host alike.
  struct Results {
    int32_t* tokens;   // [max_logit_rows]
    float* chosen;     // [max_logit_rows] log-probabilities
    int32_t* ranks;    // [max_logit_rows]
    int32_t* top_ids;  // [max_logit_rows, kMaxTopLogprobs]
    float* top;        // [max_logit_rows, kMaxTopLogprobs]
  };

  Runner(const EngineConfig& config, std::unique_ptr<Backend> backend, const ModelConfig& model);

  void reserve(bool made_up_kv);
  // Lets the ops choose among their alternatives at the sizes that will come, then records the graphs.
  void warm_up(const std::function<void(double)>& progress);
  void forward(const StepBatch& batch);
  // Uploads what the batch samples with, in front of the batch, so that no copy stands between it and the sampler.
  struct SamplingInputs {
    const int32_t *rows, *known;  // device; rows null: the batch's first tokens
    SampleParams params;
  };
  SamplingInputs upload_sampling(const StepBatch& batch, const SamplingBatch& sampling, Launched& launched);
  void sample(const SamplingInputs& inputs, const SamplingBatch& sampling, Launched& launched);
  void score(const Matrix& logits, int begin, int count, const int32_t* chosen, int vocab, int top_n);
  Results results_in(std::byte* base) const;
  EngineConfig config_;
  ModelConfig model_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Queue> queue_, lane_queue_;
  Weights weights_;
  MemoryPlan plan_;
  std::unique_ptr<Decoder> decoder_;
  std::unique_ptr<Buffer> kv_data_, kv_scores_, kv_positions_, kv_scales_, ring_data_;
  KvPool kv_;
  QueryRing ring_;
  std::unique_ptr<SwapSpace> swap_space_;  // null: there is none
  std::unique_ptr<CompressionWorkspace> workspace_;
  std::unique_ptr<StepInputs> inputs_;
  std::unique_ptr<StagingArena> sampling_inputs_;
  std::unique_ptr<Buffer> results_;                      // sampled ids and log-probabilities
  std::array<std::unique_ptr<Buffer>, 2> results_host_;  // take turns
  size_t next_results_ = 0;
  std::vector<Span> compressions_;  // in order, since the last batch was launched
  std::deque<Launched> launched_;
  std::unique_ptr<Event> last_done_;              // of the batch collected last
  std::map<int, std::unique_ptr<Graph>> graphs_;  // by number of decodes
};

}  // namespace zipage
