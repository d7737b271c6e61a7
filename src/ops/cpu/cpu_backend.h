// The CPU backend: fp32 activations, bf16 weights in panels, bf16 KV in tiles (kv_layout.h).
//
// Every op has one launcher here (its file is named after it) and kernels per instruction set; the launcher checks its
// params and picks the kernel for isa().
//
// Thread-safety: as ops/ops.h says. Normal queues share one thread pool; a low-priority queue runs on its caller's
// thread.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string_view>

#include "ops/compress_ops.h"
#include "ops/cpu/isa.h"
#include "ops/cpu/memory.h"
#include "ops/cpu/thread_pool.h"
#include "ops/ops.h"

namespace zipage::cpu {

// Calls return when their work is done, so there is nothing to wait for.
class CpuQueue final : public Queue {
 public:
  explicit CpuQueue(ThreadPool* pool) : executor(pool) {}
  void synchronize() override {}

  Executor executor;
};

class CpuBackend final : public Backend {
 public:
  // `isa` none: the best that the processor has. REQUIRES: supported(*isa).
  explicit CpuBackend(const CpuOptions& options, std::optional<Isa> isa = std::nullopt);

  Isa isa() const { return isa_; }
  static Executor& executor(Queue& queue) { return static_cast<CpuQueue&>(queue).executor; }

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
  std::unique_ptr<Graph> capture(Queue&, const std::function<void()>&) override { return nullptr; }
  void replay(Queue& queue, const Graph& graph) override;
  void end_tuning() override {}
  std::unique_ptr<Linear> make_linear(std::span<const HostTensor> parts) override;
  std::unique_ptr<Linear> make_noise_linear(int64_t out_features, int64_t in_features, uint64_t seed) override;
  size_t kv_bytes_per_block(const KvGeometry& geometry) const override;
  size_t swap_bytes_per_block(const KvGeometry& geometry) const override;

  void embedding(Queue& queue, const EmbeddingParams& params) override;
  void rms_norm(Queue& queue, const RmsNormParams& params) override;
  void linear(Queue& queue, const LinearParams& params) override;
  void qkv_rope_append(Queue& queue, const QkvRopeAppendParams& params) override;
  void attention(Queue& queue, const AttentionParams& params) override;
  void silu_mul(Queue& queue, const SiluMulParams& params) override;
  void gather_rows(Queue& queue, const GatherRowsParams& params) override;
  void sample(Queue& queue, const SampleParams& params) override;
  void logprobs(Queue& queue, const LogprobsParams& params) override;
  void swap(Queue& queue, const SwapParams& params) override;
  void swap_ring(Queue& queue, const SwapRingParams& params) override;
  void kv_gather(Queue& queue, const KvGatherParams& params) override;

  // Each executor has scratch per thread.
  size_t compression_scratch_bytes(const KvGeometry&, int, int, int) const override { return 0; }
  void window_scores(Queue& queue, const WindowScoreParams& params) override;
  void value_norms(Queue& queue, const ValueNormsParams& params) override;
  void carry(Queue& queue, const CarryParams& params) override;
  void pool_scores(Queue& queue, const PoolScoresParams& params) override;
  void redundancy(Queue& queue, const RedundancyParams& params) override;
  void combine(Queue& queue, const CombineParams& params) override;
  void select(Queue& queue, const SelectParams& params) override;
  void compact(Queue& queue, const CompactParams& params) override;

 private:
  const Isa isa_;
  ThreadPool pool_;
  Arena weights_;
};

}  // namespace zipage::cpu
