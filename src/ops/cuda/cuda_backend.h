// The CUDA backend: activations and KV in bf16 (KV also fp8), fp32 accumulation, one device.
//
// Thread-safety: as ops/ops.h. Queues are streams; kLow is the stream priority that lets other work go first. Every op
// may be captured into a CUDA graph, but swap, swap_ring and kv_gather; kv_gather waits for the queue.
#pragma once

#include <cuda_runtime.h>

#include <memory>

#include "ops/cuda/cuda_linear.h"
#include "ops/cuda/launch.h"
#include "ops/ops.h"

namespace zipage::cuda {

class CudaQueue final : public Queue {
 public:
  CudaQueue(QueuePriority priority, size_t scratch_bytes);
  ~CudaQueue() override;
  CudaQueue(const CudaQueue&) = delete;
  CudaQueue& operator=(const CudaQueue&) = delete;
  void synchronize() override;

  cudaStream_t stream() const { return stream_; }
  std::byte* scratch() const { return memory_; }  // serves one op at a time; also cuBLASLt's workspace
  size_t scratch_bytes() const { return scratch_bytes_; }
  int32_t* counters() const { return reinterpret_cast<int32_t*>(memory_ + scratch_bytes_); }

 private:
  cudaStream_t stream_ = nullptr;
  std::byte* memory_ = nullptr;
  size_t scratch_bytes_ = 0;
};

class CudaBackend final : public Backend {
 public:
  // Throws DeviceError when there is no usable device.
  explicit CudaBackend(int device);

  BackendInfo info() const override;
  std::unique_ptr<Buffer> allocate(size_t bytes, std::string_view name, MemoryKind kind) override;
  std::unique_ptr<Queue> make_queue(QueuePriority priority) override;
  std::unique_ptr<Queue> make_copy_queue() override;
  std::unique_ptr<Event> record(Queue& queue) override;
  void wait(Queue& queue, const Event& event) override;
  void upload(Queue& queue, void* device, const void* host, size_t bytes) override;
  void download(Queue& queue, void* host, const void* device, size_t bytes) override;
  void upload_rows(Queue& queue, void* device, size_t device_stride, const void* host, size_t host_stride,
                   size_t row_bytes, size_t rows) override;
  void noise(Queue& queue, void* device, DType dtype, size_t count, float scale, uint64_t seed) override;
  std::unique_ptr<Graph> capture(Queue& queue, const std::function<void()>& work) override;
  void replay(Queue& queue, const Graph& graph) override;
  void end_tuning() override;
  std::unique_ptr<Linear> make_linear(std::span<const HostTensor> parts) override;
  std::unique_ptr<Linear> make_noise_linear(int64_t out_features, int64_t in_features, uint64_t seed) override;
  size_t kv_bytes_per_block(const KvGeometry& geometry) const override;
  size_t swap_bytes_per_block(const KvGeometry& geometry) const override;
  size_t compression_scratch_bytes(const KvGeometry& geometry, int num_heads, int window, int max_slots) const override;

  void embedding(Queue&, const EmbeddingParams&) override;
  void rms_norm(Queue&, const RmsNormParams&) override;
  void linear(Queue&, const LinearParams&) override;
  void qkv_rope_append(Queue&, const QkvRopeAppendParams&) override;
  void attention(Queue&, const AttentionParams&) override;
  void append_and_attend(Queue&, const QkvRopeAppendParams&, const AttentionParams&) override;
  void silu_mul(Queue&, const SiluMulParams&) override;
  void linear_norm(Queue&, const LinearNormParams&) override;
  void gated_linear(Queue&, const GatedLinearParams&) override;
  void dense_chain(Queue&, const DenseChainParams&) override;
  void gather_rows(Queue&, const GatherRowsParams&) override;
  void sample(Queue&, const SampleParams&) override;
  void logprobs(Queue&, const LogprobsParams&) override;
  void swap(Queue&, const SwapParams&) override;
  void swap_ring(Queue&, const SwapRingParams&) override;
  void kv_gather(Queue&, const KvGatherParams&) override;

  void window_scores(Queue&, const WindowScoreParams&) override;
  void value_norms(Queue&, const ValueNormsParams&) override;
  void carry(Queue&, const CarryParams&) override;
  void pool_scores(Queue&, const PoolScoresParams&) override;
  void redundancy(Queue&, const RedundancyParams&) override;
  void combine(Queue&, const CombineParams&) override;
  void final_scores(Queue&, const FinalScoresParams&) override;
  void select(Queue&, const SelectParams&) override;
  void compact(Queue&, const CompactParams&) override;

 private:
  Launch launch(Queue& queue) const;
  bool norms_within(const Launch&, Queue&, const DenseChainParams&);

  int device_ = 0;
  cudaDeviceProp properties_{};
  int max_shared_bytes_ = 0;
  std::unique_ptr<WeightStaging> staging_;  // null until weights are loaded
  Gemm gemm_;
};

}  // namespace zipage::cuda
