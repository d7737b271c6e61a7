// The seam to the hardware: one POD params struct per op, one Backend per kind of device.
//
// Launchers (the Backend's methods) check shapes, types and aliasing; kernels trust them. Every pointer is device
// memory of the backend (host memory on the CPU) unless a comment says host. "act" is the backend's activation type
// (Backend::info().activation): fp32 on the CPU, bf16 on CUDA. Accumulation is fp32 everywhere.
//
// Thread-safety: a Queue is used by one thread at a time; different queues of one backend may be used by different
// threads. Work of one queue runs in order. On the CPU a call returns when its work is done; on CUDA it is enqueued.
// Errors: a device failure throws DeviceError.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "tensor/dtype.h"
#include "tensor/host_tensor.h"

namespace zipage {

struct DeviceError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A row-major matrix view [rows, cols], rows `stride` elements apart.
struct Matrix {
  void* data = nullptr;
  DType dtype = DType::kF32;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t stride = 0;  // elements
};

// ---- KV pool
// -----------------------------------------------------------------------------------------------------------

// Geometry of the pool; the arrangement of K and V inside a block belongs to the backend.
struct KvGeometry {
  int num_layers = 0;
  int num_blocks = 0;
  int block_size = 0;  // slots a block (b)
  int num_kv_heads = 0;
  int head_dim = 0;
  DType dtype = DType::kBF16;  // kBF16 or kF8E4M3
};

// Each layer's part of the pool is contiguous: [num_blocks][block bytes], kv_bytes_per_block() bytes a block.
// scores and positions belong to slots that an earlier compression kept; null when the engine never compresses.
struct KvPool {
  KvGeometry geometry;
  std::byte* data = nullptr;       // [num_layers][num_blocks][kv_bytes_per_block]
  float* scores = nullptr;         // [num_layers][num_blocks][num_kv_heads][block_size]
  int32_t* positions = nullptr;    // [num_layers][num_blocks][num_kv_heads][block_size]
  const float* k_scale = nullptr;  // [num_layers][num_kv_heads], fp8 only
  const float* v_scale = nullptr;
};

// The last w queries of each sequence that holds a query slot, after RoPE: of its tokens at multiples of `stride`.
struct QueryRing {
  void* data = nullptr;  // act [num_layers][num_query_slots][window][num_heads][head_dim]; null when never compressing
  int num_query_slots = 0;
  int window = 0;
  int stride = 1;

  bool records(int position) const { return position % stride == 0; }
  int row(int position) const { return position / stride % window; }
  // Of a sequence of so many tokens: how many queries the ring holds, and the position of the oldest.
  int num_rows(int logical_len) const { return std::min(window, (logical_len - 1) / stride + 1); }
  int first_position(int logical_len) const {
    return ((logical_len - 1) / stride - (num_rows(logical_len) - 1)) * stride;
  }
};

// ---- a step's batch
// ------------------------------------------------------------------------------------------------------

// Tokens of all scheduled sequences, flattened. The first num_decodes sequences have one token each, so tokens
// [0, num_decodes) are theirs; the others (prefill chunks, or more than one token) follow.
struct BatchView {
  int num_tokens = 0;
  int num_seqs = 0;
  int num_decodes = 0;
  int max_query_len = 0;                  // host, over the sequences that are not decodes
  int max_seq_len = 0;                    // host, over all
  int max_blocks_per_seq = 0;             // row stride of block_table
  const int32_t* token_ids = nullptr;     // [num_tokens]; one below 0 stands for sampled[-1 - id]
  const int32_t* sampled = nullptr;       // what an earlier batch of the queue sampled, or null
  const int32_t* positions = nullptr;     // [num_tokens] logical
  const int32_t* slot_mapping = nullptr;  // [num_tokens] block * block_size + slot; -1 = not stored (padding)
  const int32_t* query_ring_rows =
      nullptr;  // [num_tokens] query_slot * window + QueryRing::row(position); -1 = not recorded
  const int32_t* query_start_loc = nullptr;  // [num_seqs + 1] token index where each sequence's tokens begin
  const int32_t* seq_lens = nullptr;         // [num_seqs] resident tokens including this step's; 0 = padding row
  const int32_t* block_table = nullptr;      // [num_seqs, max_blocks_per_seq]
};

// ---- params of the model's ops
// ---------------------------------------------------------------------------------------------

// Weights of one linear layer in the backend's own packed form. Also serves as embedding table when tied.
class Linear {
 public:
  virtual ~Linear() = default;
  virtual int64_t in_features() const = 0;
  virtual int64_t out_features() const = 0;
  virtual size_t bytes() const = 0;
};

struct EmbeddingParams {
  const Linear* table = nullptr;       // [vocab, hidden]
  const int32_t* token_ids = nullptr;  // [num_tokens]; REQUIRES id < vocab
  const int32_t* sampled = nullptr;    // an id below 0 stands for sampled[-1 - id], and that for 0 if it is below 0
  Matrix out;                          // act [num_tokens, hidden]
};

// out = x / rms(x + residual) * weight; with a residual, residual += x first (and keeps the sum).
struct RmsNormParams {
  Matrix x;                       // act [rows, hidden]
  Matrix residual;                // act [rows, hidden] or data == null
  const float* weight = nullptr;  // [hidden]
  float eps = 1e-6F;
  Matrix out;  // act [rows, hidden]; may alias x
};

struct LinearParams {
  Matrix x;  // act [rows, in_features]
  const Linear* weight = nullptr;
  const float* bias = nullptr;  // [out_features] or null
  Matrix out;                   // act, or fp32 for logits [rows, out_features]
};

// Per token: split qkv, normalise q and k per head (if weights given), rotate both, store K and V into the pool at
// slot_mapping, record q in the ring. One pass.
struct QkvRopeAppendParams {
  Matrix qkv;  // act [num_tokens, (num_heads + 2 * num_kv_heads) * head_dim]; q part rewritten in place
  int num_heads = 0;
  const float* q_norm = nullptr;  // [head_dim] or null
  const float* k_norm = nullptr;  // [head_dim] or null
  float norm_eps = 1e-6F;
  const float* cos_sin = nullptr;  // [max_position, rotary_dim]: rotary_dim/2 cosines, then as many sines
  int rotary_dim = 0;              // rotated leading elements of a head (NeoX halves); the rest pass through
  int layer = 0;
  BatchView batch;
  KvPool kv;
  QueryRing ring;
};

// Causal attention over the paged pool: token i of a sequence's chunk sees resident slots
// [0, seq_len - query_len + i]. Handles decode rows and chunks of one batch.
struct AttentionParams {
  Matrix q;  // act [num_tokens, >= num_heads * head_dim] (a view of qkv)
  int num_heads = 0;
  float scale = 0;  // 1 / sqrt(head_dim) unless the model says otherwise
  int layer = 0;
  BatchView batch;
  KvPool kv;
  Matrix out;  // act [num_tokens, num_heads * head_dim]; padding rows become 0
};

struct SiluMulParams {
  Matrix gate_up;  // act [rows, 2 * intermediate]: gate first
  Matrix out;      // act [rows, intermediate]
};

// A linear layer's branch added to the residual, and the norm of the sum.
struct LinearNormParams {
  Matrix x;  // act [rows, weight's in]
  const Linear* weight = nullptr;
  const float* bias = nullptr;  // [out.cols] or null
  Matrix residual;              // act [rows, out.cols]: becomes the sum
  const float* norm = nullptr;  // [out.cols]
  float eps = 1e-6F;
  Matrix out;  // act
};

// silu(gate) * up of what a linear layer gives, the gate's features first.
struct GatedLinearParams {
  Matrix x;  // act [rows, weight's in]
  const Linear* weight = nullptr;
  const float* bias = nullptr;  // [2 * out.cols] or null
  Matrix gate_up;               // act [rows, 2 * out.cols]: workspace
  Matrix out;                   // act
};

// Everything between a layer's attention and the next one's QKV, in order:
//   residual += output(x);  ffn = silu(gate) * up of gate_up(norm(residual));  down(ffn) is the branch;
//   residual += branch;  qkv = next_qkv(next_norm(residual))
// REQUIRES: no other queue of the device runs it at the same time (blocks of a kernel may wait for each other).
struct DenseChainParams {
  struct Layer {
    const Linear* weight = nullptr;
    const float* bias = nullptr;  // or null
  };
  Matrix x;                          // act [rows, num_heads * head_dim]: what attention gave
  Matrix residual;                   // act [rows, hidden]
  Layer output, gate_up, down;       // [hidden, x.cols], [2 * intermediate, hidden], [hidden, intermediate]
  Layer next_qkv;                    // weight null behind the last layer: the branch is left in `hidden`, not added
  const float* norm = nullptr;       // [hidden]
  const float* next_norm = nullptr;  // [hidden]; null behind the last layer
  float eps = 1e-6F;
  Matrix hidden;       // act [rows, hidden]: workspace; behind the last layer the branch
  Matrix gate_up_out;  // act [rows, 2 * intermediate]: workspace
  Matrix ffn;          // act [rows, intermediate]: workspace
  Matrix qkv;          // act [rows, next_qkv's features]
};

struct GatherRowsParams {
  Matrix x;                       // act [*, cols]
  const int32_t* rows = nullptr;  // [out.rows]
  Matrix out;
};

// ---- sampling
// ----------------------------------------------------------------------------------------------------------------

// One row per sampled sequence. Order: mask and bias, penalties, temperature, top_k, top_p, min_p, then Gumbel-max with
// noise hashed from (seed, position, token id), so that batch mates change nothing. temperature <= 1e-5 is greedy
// (ties: lowest id). Non-finite logits are ignored while a finite one exists; otherwise out_token = -1. Values equal to
// the k-th largest, or to the last that top_p needs, are kept. The noise is defined in ops/sample_noise.h.
struct SampleParams {
  Matrix logits;                              // fp32 [rows, vocab]; left unchanged
  int vocab = 0;                              // ids >= vocab (padding of the head) are never sampled
  const float* temperature = nullptr;         // [rows]
  const int32_t* top_k = nullptr;             // [rows]; <= 0 = off
  const float* top_p = nullptr;               // [rows]; 1 = off
  const float* min_p = nullptr;               // [rows]; 0 = off
  const uint64_t* seed = nullptr;             // [rows]
  const int64_t* position = nullptr;          // [rows] index of the token to be sampled in its sequence
  const float* repetition_penalty = nullptr;  // [rows]; 1 = off
  const float* presence_penalty = nullptr;    // [rows]
  const float* frequency_penalty = nullptr;   // [rows]
  // Sparse history for penalties: distinct ids of prompt and output. Empty ranges for rows without penalties.
  const int32_t* history_start = nullptr;  // [rows + 1]
  const int32_t* history_ids = nullptr;
  const int32_t* history_counts = nullptr;  // occurrences in the output; 0 = in the prompt only
  const int32_t* bias_start = nullptr;      // [rows + 1] or null
  const int32_t* bias_ids = nullptr;
  const float* bias_values = nullptr;    // -inf forbids
  const uint32_t* allowed = nullptr;     // bit mask [rows, (vocab + 31) / 32] or null
  const uint8_t* use_allowed = nullptr;  // [rows]: whether the row has a mask
  int32_t* out_token = nullptr;          // [rows]
};

// Log-probabilities of the raw logits.
struct LogprobsParams {
  Matrix logits;  // fp32 [rows, vocab]
  int vocab = 0;
  const int32_t* chosen = nullptr;  // [rows]; -1 = none
  int top_n = 0;                    // 0 = only the chosen one's
  float* out_chosen = nullptr;      // [rows]
  int32_t* out_rank = nullptr;      // [rows] 1 = the most likely; ties: lowest id first
  int32_t* out_top_ids = nullptr;   // [rows, top_n] descending; ties: lowest id first
  float* out_top = nullptr;         // [rows, top_n]
};

// ---- moving KV
// ---------------------------------------------------------------------------------------------------------------

// Whole blocks of all layers (K, V, scores, positions) to or from other memory, bit for bit.
struct SwapParams {
  KvPool kv;
  std::span<const int32_t> blocks;       // host array: blocks of the pool
  std::span<const int32_t> host_blocks;  // host array, as long: blocks of `host`
  std::byte* host = nullptr;             // [*][swap_bytes_per_block], pinned host memory or the device's
  bool to_host = true;
};

// A query slot's ring rows of all layers to or from host memory.
struct SwapRingParams {
  QueryRing ring;
  int num_layers = 0;
  int query_slot = 0;
  int64_t row_elements = 0;   // num_heads * head_dim
  std::byte* host = nullptr;  // host [num_layers][window][row_elements] of act
  bool to_host = true;
};

// Reads slots as fp32, whatever the layout: for tests, pictures and debugging.
struct KvGatherParams {
  KvPool kv;
  int layer = 0;
  int kv_head = 0;
  std::span<const int32_t> slots;  // host; block * block_size + slot
  float* k = nullptr;              // host [slots, head_dim]
  float* v = nullptr;
};

// ---- backend
// -----------------------------------------------------------------------------------------------------------------

class Queue {  // an in-order stream of work
 public:
  virtual ~Queue() = default;
  virtual void synchronize() = 0;
};

class Event {
 public:
  virtual ~Event() = default;
  virtual bool done() const = 0;
  virtual void wait() const = 0;  // blocks the host
  // Time on the device from another event of the same queue to this one. REQUIRES: both done
  virtual double seconds_since(const Event& earlier) const = 0;
};

// Recorded work: runs again with the same shapes and addresses.
class Graph {
 public:
  virtual ~Graph() = default;
};

enum class QueuePriority : uint8_t { kNormal, kLow };

// Owns a piece of device or pinned host memory; freed with the owner.
class Buffer {
 public:
  virtual ~Buffer() = default;
  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  template <typename T>
  T* as() const {
    return reinterpret_cast<T*>(data_);
  }

 protected:
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
};

enum class MemoryKind : uint8_t { kDevice, kPinnedHost };

struct BackendInfo {
  std::string name;         // "cpu", "cuda"
  std::string description;  // "2 threads, avx512_bf16", "NVIDIA H200, sm_90"
  DType activation = DType::kF32;
  bool host_accessible = true;  // device pointers may be read and written by the host
  bool asynchronous = false;    // calls return before their work is done
  size_t memory_bytes = 0;      // what the device has
  size_t free_memory_bytes = 0;
};

struct WindowScoreParams;
struct CarryParams;
struct ValueNormsParams;
struct PoolScoresParams;
struct RedundancyParams;
struct CombineParams;
struct FinalScoresParams;
struct SelectParams;
struct CompactParams;

class Backend {
 public:
  virtual ~Backend() = default;
  virtual BackendInfo info() const = 0;

  // Memory is named so that a plan can be printed. Zero-filled.
  virtual std::unique_ptr<Buffer> allocate(size_t bytes, std::string_view name,
                                           MemoryKind kind = MemoryKind::kDevice) = 0;
  virtual std::unique_ptr<Queue> make_queue(QueuePriority priority) = 0;
  // For copies alone: it has no memory for ops to work in.
  virtual std::unique_ptr<Queue> make_copy_queue() = 0;
  virtual std::unique_ptr<Event> record(Queue& queue) = 0;
  virtual void wait(Queue& queue, const Event& event) = 0;  // later work of the queue waits for the event
  // Asynchronous copies; host memory must be pinned (MemoryKind::kPinnedHost) and stay untouched until the work is
  // done.
  virtual void upload(Queue& queue, void* device, const void* host, size_t bytes) = 0;
  virtual void download(Queue& queue, void* host, const void* device, size_t bytes) = 0;
  // `rows` rows of `row_bytes`, `host_stride` and `device_stride` bytes apart.
  virtual void upload_rows(Queue& queue, void* device, size_t device_stride, const void* host, size_t host_stride,
                           size_t row_bytes, size_t rows) = 0;
  // Numbers uniform in [-scale, scale), a function of seed and index. REQUIRES: dtype kBF16 or kF8E4M3
  virtual void noise(Queue& queue, void* device, DType dtype, size_t count, float scale, uint64_t seed) = 0;

  // Records what `work` enqueues on the queue instead of running it. Null, and work is not called: the backend has no
  // graphs.
  virtual std::unique_ptr<Graph> capture(Queue& queue, const std::function<void()>& work) = 0;
  virtual void replay(Queue& queue, const Graph& graph) = 0;
  // Ops may try alternatives when they meet a shape for the first time; from here on none does.
  virtual void end_tuning() = 0;

  // Packs [out, in] weights; several parts are stacked along out (q, k, v; gate, up). The source may be dropped after.
  virtual std::unique_ptr<Linear> make_linear(std::span<const HostTensor> parts) = 0;
  // Made-up weights: noise that keeps the size of what goes through.
  virtual std::unique_ptr<Linear> make_noise_linear(int64_t out_features, int64_t in_features, uint64_t seed) = 0;

  virtual size_t kv_bytes_per_block(const KvGeometry& geometry) const = 0;    // one layer, K and V
  virtual size_t swap_bytes_per_block(const KvGeometry& geometry) const = 0;  // all layers, with scores and positions

  virtual void embedding(Queue&, const EmbeddingParams&) = 0;
  virtual void rms_norm(Queue&, const RmsNormParams&) = 0;
  virtual void linear(Queue&, const LinearParams&) = 0;
  virtual void qkv_rope_append(Queue&, const QkvRopeAppendParams&) = 0;
  virtual void attention(Queue&, const AttentionParams&) = 0;
  // The two one after the other, unless a backend knows better; q of qkv is the attention's, and undefined afterwards.
  virtual void append_and_attend(Queue&, const QkvRopeAppendParams&, const AttentionParams&);
  virtual void silu_mul(Queue&, const SiluMulParams&) = 0;
  // The ops above, one after another, unless a backend knows better.
  virtual void linear_norm(Queue&, const LinearNormParams&);
  virtual void gated_linear(Queue&, const GatedLinearParams&);
  virtual void dense_chain(Queue&, const DenseChainParams&);
  virtual void gather_rows(Queue&, const GatherRowsParams&) = 0;
  virtual void sample(Queue&, const SampleParams&) = 0;
  virtual void logprobs(Queue&, const LogprobsParams&) = 0;
  virtual void swap(Queue&, const SwapParams&) = 0;
  virtual void swap_ring(Queue&, const SwapRingParams&) = 0;
  virtual void kv_gather(Queue&, const KvGatherParams&) = 0;

  // Device bytes of scratch that window_scores and redundancy want, for one sequence of up to max_slots resident slots;
  // they may share it. 0: the backend has scratch of its own.
  virtual size_t compression_scratch_bytes(const KvGeometry& geometry, int num_heads, int window,
                                           int max_slots) const = 0;
  // The stages of compression, in order; params in ops/compress_ops.h.
  virtual void window_scores(Queue&, const WindowScoreParams&) = 0;
  virtual void value_norms(Queue&, const ValueNormsParams&) = 0;
  virtual void carry(Queue&, const CarryParams&) = 0;
  virtual void pool_scores(Queue&, const PoolScoresParams&) = 0;
  virtual void redundancy(Queue&, const RedundancyParams&) = 0;
  virtual void combine(Queue&, const CombineParams&) = 0;
  // The stages above, one after another, unless a backend knows better.
  virtual void final_scores(Queue&, const FinalScoresParams&);
  virtual void select(Queue&, const SelectParams&) = 0;
  virtual void compact(Queue&, const CompactParams&) = 0;
};

struct CpuOptions {
  int num_threads = 0;  // 0 = the cores this process may use
};

std::unique_ptr<Backend> make_cpu_backend(const CpuOptions& options);
// The only place that knows which backends were built in (ops/backend.cpp).
// `device`: "auto", "cpu" or "cuda". Throws DeviceError with a sentence when it is not to be had.
std::unique_ptr<Backend> make_backend(std::string_view device, const CpuOptions& cpu);

}  // namespace zipage
