// What a kernel launcher gets besides its params struct. Launchers neither allocate nor wait for the device, and read
// lengths only on the device, so every one of them may be captured into a CUDA graph.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "ops/compress_ops.h"
#include "ops/ops.h"

namespace zipage::cuda {

// Throws DeviceError naming `what` and CUDA's own sentence.
void check(cudaError_t status, const char* what);

struct Launch {
  cudaStream_t stream = nullptr;
  std::byte* scratch = nullptr;  // of this queue alone; contents last for one op
  size_t scratch_bytes = 0;
  int32_t* counters = nullptr;  // [kNumCounters] of this queue, zero between ops
  int num_sms = 0;
  int max_shared_bytes = 0;    // dynamic shared memory that one block may ask for
  int compute_capability = 0;  // 90 is 9.0
};
inline constexpr int kNumCounters = 1 << 16;

// K and V in the pool, HND: layer [num_blocks, 2 (K, V), num_kv_heads, block_size, head_dim].
struct KvLayout {
  std::byte* data = nullptr;
  int64_t layer_bytes = 0;
  int64_t block_bytes = 0;
  int64_t head_bytes = 0;    // one head's rows of K (or V) in a block: contiguous
  int64_t value_offset = 0;  // from a K row to the V row of the same slot
  int block_size = 0;
  int num_kv_heads = 0;
  int row_bytes = 0;
  bool is_fp8 = false;

  KvLayout() = default;
  explicit KvLayout(const KvPool& pool)
      : data(pool.data),
        block_size(pool.geometry.block_size),
        num_kv_heads(pool.geometry.num_kv_heads),
        is_fp8(pool.geometry.dtype == DType::kF8E4M3) {
    row_bytes = pool.geometry.head_dim * (is_fp8 ? 1 : 2);
    head_bytes = int64_t{row_bytes} * block_size;
    value_offset = head_bytes * num_kv_heads;
    block_bytes = 2 * value_offset;
    layer_bytes = block_bytes * pool.geometry.num_blocks;
  }

#ifdef __CUDACC__
  __device__ std::byte* key_row(int layer, int64_t block, int head, int slot) const {
    return data + layer * layer_bytes + block * block_bytes + head * head_bytes + int64_t{slot} * row_bytes;
  }
#endif
};

#ifdef __CUDACC__
// Of the pool's scores and positions.
__device__ inline int64_t score_index(const KvGeometry& g, int layer, int64_t block, int head, int slot) {
  return ((layer * int64_t{g.num_blocks} + block) * g.num_kv_heads + head) * g.block_size + slot;
}
#endif

#ifdef __CUDACC__
// Starts a kernel on clusters of so many blocks, of which the grid's first dimension is a multiple (1: none). From
// Hopper on it may start while the kernel before it still runs: its blocks fill the multiprocessors as these become
// free and wait in wait_for_previous(), which every block of every kernel calls before it touches what others wrote.
template <typename... Params, typename... Args>
void run_in_clusters(const Launch& launch, int cluster, void (*kernel)(Params...), dim3 grid, int threads,
                     size_t shared_bytes, const Args&... args) {
  cudaLaunchAttribute attributes[2]{};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim.x = static_cast<unsigned>(cluster);
  attributes[1].val.clusterDim.y = attributes[1].val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = shared_bytes;
  config.stream = launch.stream;
  config.attrs = attributes;
  config.numAttrs = launch.compute_capability < 90 ? 0 : cluster > 1 ? 2 : 1;
  check(cudaLaunchKernelEx(&config, kernel, static_cast<Params>(args)...), "a kernel's start");
}

template <typename... Params, typename... Args>
void run(const Launch& launch, void (*kernel)(Params...), dim3 grid, int threads, size_t shared_bytes,
         const Args&... args) {
  run_in_clusters(launch, 1, kernel, grid, threads, shared_bytes, args...);
}

// f.operator()<n>() of the one of kSizes that `size` is, the last one's where it is none: kernels are compiled for a
// few head sizes.
template <int kSize, int... kSizes, typename F>
void dispatch(int size, const F& f) {
  if constexpr (sizeof...(kSizes) > 0) {
    if (size != kSize) return dispatch<kSizes...>(size, f);
  }
  f.template operator()<kSize>();
}

// The two halves. In between, a kernel may read what no kernel since the last copy to the device has written: weights,
// and, since a step begins with the copy of its inputs, those inputs and the KV of tokens before the step's own.
__device__ __forceinline__ void let_next_start() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;\n" ::: "memory");
#endif
}
__device__ __forceinline__ void wait_till_previous_ended() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;\n" ::: "memory");
#endif
}
__device__ __forceinline__ void wait_for_previous() {
  let_next_start();
  wait_till_previous_ended();
}
#endif

// ---- one per op; the files bear the ops' names ---------------------------------------------------------------------

void embedding(const Launch&, const EmbeddingParams&, const void* table);
void rms_norm(const Launch&, const RmsNormParams&);
inline constexpr int64_t kMaxNormSize = 32768;  // elements of a row
// The same of x = the sum of parts [count, rows, cols]; of p.x sizes alone count.
struct ProductParts {
  const float* data = nullptr;
  int count = 0;
};
void rms_norm_of_parts(const Launch&, const ProductParts&, const RmsNormParams&);
void add_bias(const Launch&, const Matrix& x, const float* bias, const Matrix& out);  // x fp32
void qkv_rope_append(const Launch&, const QkvRopeAppendParams&);
void silu_mul(const Launch&, const SiluMulParams&);
// Weights: of output, gate and up, down, the next QKV (null behind the last layer).
void dense_chain(const Launch&, const DenseChainParams&, const void* const (&weights)[4]);
bool serves_dense_chain(const Launch&, const DenseChainParams&);
inline constexpr int kMaxDenseChainRows = 16;  // with more, x takes longer than the weights
void gather_rows(const Launch&, const GatherRowsParams&);
void sample(const Launch&, const SampleParams&);
void logprobs(const Launch&, const LogprobsParams&);
void swap(const Launch&, const SwapParams&);
void noise(const Launch&, void* data, DType, size_t count, float scale, uint64_t seed);
void kv_gather(const Launch&, const KvGatherParams&, const int32_t* slots, int num_slots, float* k, float* v);

// Rows of one token that belong to the first num_decodes sequences; the split over the device is planned in the kernel.
// With an append, also what qkv_rope_append does to these rows; q is the front part of its qkv then.
void attention_decode(const Launch&, const AttentionParams&, const QkvRopeAppendParams* append);
bool serves_append(const Launch&, const QkvRopeAppendParams&);
size_t attention_decode_scratch_bytes(int num_sms, int group, int head_dim);
// All other rows. Also decode rows of models whose groups attention_decode does not serve.
void attention_prefill(const Launch&, const AttentionParams&, int first_seq);
inline constexpr int kMaxDecodeGroup = 16;
// The same with Hopper's own instructions, for the shapes that it serves.
bool serves_prefill_hopper(const Launch&, const AttentionParams&);
void attention_prefill_hopper(const Launch&, const AttentionParams&, int first_seq);

void window_scores(const Launch&, const WindowScoreParams&);
size_t window_scores_scratch_bytes(const KvGeometry&, int num_heads, int window, int num_slots);
void value_norms(const Launch&, const ValueNormsParams&);
void carry(const Launch&, const CarryParams&);
void pool_scores(const Launch&, const PoolScoresParams&);
void redundancy(const Launch&, const RedundancyParams&);
size_t redundancy_scratch_bytes(const KvGeometry&, int num_slots);
void combine(const Launch&, const CombineParams&);
// Stages 1 to 6 with K read twice and V once, where it serves them.
bool serves_final_scores(const Launch&, const FinalScoresParams&);
void final_scores(const Launch&, const FinalScoresParams&);
size_t final_scores_scratch_bytes(const KvGeometry&, int num_sms, int num_slots);
void select(const Launch&, const SelectParams&);
void compact(const Launch&, const CompactParams&);

}  // namespace zipage::cuda
