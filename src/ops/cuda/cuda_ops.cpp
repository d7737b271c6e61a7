// The Backend's ops on CUDA: checks, then the kernel's launcher.
#include <fmt/format.h>

#include <cstring>
#include <vector>

#include "base/check.h"
#include "ops/cuda/cuda_backend.h"
#include "ops/cuda/op_checks.h"

namespace zipage::cuda {
namespace {

void check_kv(const KvPool& kv, int layer, const char* op) {
  const KvGeometry& g = kv.geometry;
  ZIPAGE_CHECK(kv.data != nullptr && layer >= 0 && layer < g.num_layers, "{}: layer {} of {}", op, layer, g.num_layers);
  ZIPAGE_CHECK(
      g.block_size % 16 == 0 && g.block_size >= 16 &&
          (g.head_dim == 64 || g.head_dim == 96 || g.head_dim == 128 || g.head_dim == 256),
      "{}: blocks of {} and heads of {}; CUDA serves blocks of a multiple of 16 and heads of 64, 96, 128 or 256", op,
      g.block_size, g.head_dim);
  ZIPAGE_CHECK(g.dtype == DType::kBF16 || (g.dtype == DType::kF8E4M3 && kv.k_scale != nullptr && kv.v_scale != nullptr),
               "{}: KV must be bf16, or fp8_e4m3 with its scales", op);
}

}  // namespace

void CudaBackend::embedding(Queue& queue, const EmbeddingParams& p) {
  check_act(p.out, "embedding", "out");
  const auto& table = static_cast<const CudaLinear&>(*p.table);
  ZIPAGE_CHECK(p.out.cols == table.in_features(), "embedding: {} columns of {}", p.out.cols, table.in_features());
  if (p.out.rows == 0) return;
  cuda::embedding(launch(queue), p, table.data());
  done("embedding");
}

void CudaBackend::rms_norm(Queue& queue, const RmsNormParams& p) {
  check_act(p.x, "rms_norm", "x");
  check_act(p.out, "rms_norm", "out");
  if (p.residual.data != nullptr) {
    check_act(p.residual, "rms_norm", "residual");
    ZIPAGE_CHECK(p.residual.data != p.out.data && p.residual.data != p.x.data && p.residual.rows == p.x.rows,
                 "rms_norm: residual aliases");
  }
  ZIPAGE_CHECK(p.out.rows == p.x.rows && p.out.cols == p.x.cols && p.x.cols <= kMaxNormSize,
               "rms_norm: [{}, {}] to [{}, {}]", p.x.rows, p.x.cols, p.out.rows, p.out.cols);
  if (p.x.rows == 0) return;
  cuda::rms_norm(launch(queue), p);
  done("rms_norm");
}

void CudaBackend::linear(Queue& queue, const LinearParams& p) {
  check_act(p.x, "linear", "x");
  const auto& weight = static_cast<const CudaLinear&>(*p.weight);
  ZIPAGE_CHECK(p.x.cols == weight.in_features() && p.out.cols == weight.out_features() && p.x.rows == p.out.rows,
               "linear: [{}, {}] by [{}, {}] to [{}, {}]", p.x.rows, p.x.cols, weight.out_features(),
               weight.in_features(), p.out.rows, p.out.cols);
  ZIPAGE_CHECK(p.out.dtype == DType::kBF16 || p.out.dtype == DType::kF32, "linear: out must be bf16 or f32");
  if (p.x.rows == 0) return;
  gemm_.run(launch(queue), p.x, weight, p.bias, p.out);
  done("linear");
}

namespace {

void check_append(const QkvRopeAppendParams& p) {
  check_act(p.qkv, "qkv_rope_append", "qkv");
  check_kv(p.kv, p.layer, "qkv_rope_append");
  const KvGeometry& g = p.kv.geometry;
  ZIPAGE_CHECK(p.qkv.cols == int64_t{p.num_heads + 2 * g.num_kv_heads} * g.head_dim, "qkv_rope_append: {} columns",
               p.qkv.cols);
  ZIPAGE_CHECK(p.rotary_dim % 16 == 0 && p.rotary_dim <= g.head_dim && (p.rotary_dim == 0 || p.cos_sin != nullptr),
               "qkv_rope_append: rotary size {} of {}", p.rotary_dim, g.head_dim);
  ZIPAGE_CHECK(p.ring.data == nullptr || p.batch.query_ring_rows != nullptr, "qkv_rope_append: a ring without rows");
}

int group_of(const AttentionParams& p) {
  return p.num_heads / p.kv.geometry.num_kv_heads;
}

void check_attention(const Launch& launch, const AttentionParams& p) {
  check_act(p.out, "attention", "out");
  check_kv(p.kv, p.layer, "attention");
  const KvGeometry& g = p.kv.geometry;
  ZIPAGE_CHECK(p.q.dtype == DType::kBF16 && p.q.stride % 8 == 0 && p.num_heads % g.num_kv_heads == 0 &&
                   p.num_heads / g.num_kv_heads <= 64 && p.out.cols == int64_t{p.num_heads} * g.head_dim,
               "attention: {} heads over {} KV heads", p.num_heads, g.num_kv_heads);
  ZIPAGE_CHECK(p.out.data != p.q.data, "attention: in place");
  if (p.batch.num_decodes == 0 || group_of(p) > kMaxDecodeGroup) return;
  ZIPAGE_CHECK(int64_t{p.batch.num_decodes} * g.num_kv_heads <= kNumCounters &&
                   attention_decode_scratch_bytes(launch.num_sms, group_of(p), g.head_dim) <= launch.scratch_bytes,
               "attention: {} sequences are too many for one step", p.batch.num_decodes);
}

}  // namespace

void CudaBackend::qkv_rope_append(Queue& queue, const QkvRopeAppendParams& p) {
  check_append(p);
  if (p.batch.num_tokens == 0) return;
  cuda::qkv_rope_append(launch(queue), p);
  done("qkv_rope_append");
}

void CudaBackend::attention(Queue& queue, const AttentionParams& p) {
  const Launch where = launch(queue);
  check_attention(where, p);
  const bool split = group_of(p) <= kMaxDecodeGroup;
  if (p.batch.num_decodes > 0 && split) attention_decode(where, p, nullptr);
  const int first = split ? p.batch.num_decodes : 0;
  if (p.batch.num_seqs > first) {
    (serves_prefill_hopper(where, p) ? attention_prefill_hopper : attention_prefill)(where, p, first);
  }
  done("attention");
}

void CudaBackend::append_and_attend(Queue& queue, const QkvRopeAppendParams& append, const AttentionParams& p) {
  if (!serves_append(launch(queue), append) || p.batch.num_decodes == 0 || group_of(p) > kMaxDecodeGroup)
    return Backend::append_and_attend(queue, append, p);
  const Launch where = launch(queue);
  check_append(append);
  check_attention(where, p);
  ZIPAGE_CHECK(append.qkv.data == p.q.data && append.qkv.stride == p.q.stride && append.layer == p.layer,
               "append_and_attend: of two layers");
  attention_decode(where, p, &append);
  done("attention");
}

void CudaBackend::silu_mul(Queue& queue, const SiluMulParams& p) {
  check_act(p.gate_up, "silu_mul", "gate_up");
  check_act(p.out, "silu_mul", "out");
  ZIPAGE_CHECK(p.gate_up.cols == 2 * p.out.cols && p.gate_up.rows == p.out.rows, "silu_mul: [{}, {}] to [{}, {}]",
               p.gate_up.rows, p.gate_up.cols, p.out.rows, p.out.cols);
  if (p.out.rows == 0) return;
  cuda::silu_mul(launch(queue), p);
  done("silu_mul");
}

void CudaBackend::gather_rows(Queue& queue, const GatherRowsParams& p) {
  check_act(p.x, "gather_rows", "x");
  check_act(p.out, "gather_rows", "out");
  ZIPAGE_CHECK(p.x.data != p.out.data && p.x.cols == p.out.cols, "gather_rows: {} to {} columns", p.x.cols, p.out.cols);
  if (p.out.rows == 0) return;
  cuda::gather_rows(launch(queue), p);
  done("gather_rows");
}

void CudaBackend::sample(Queue& queue, const SampleParams& p) {
  ZIPAGE_CHECK(p.logits.dtype == DType::kF32 && p.vocab <= p.logits.cols, "sample: {} ids of {} logits", p.vocab,
               p.logits.cols);
  if (p.logits.rows == 0) return;
  cuda::sample(launch(queue), p);
  done("sample");
}

void CudaBackend::logprobs(Queue& queue, const LogprobsParams& p) {
  ZIPAGE_CHECK(p.logits.dtype == DType::kF32 && p.vocab <= p.logits.cols && p.top_n >= 0 && p.top_n <= p.vocab,
               "logprobs: the {} best of {} ids, {} logits", p.top_n, p.vocab, p.logits.cols);
  if (p.logits.rows == 0) return;
  cuda::logprobs(launch(queue), p);
  done("logprobs");
}

void CudaBackend::swap(Queue& queue, const SwapParams& p) {
  ZIPAGE_CHECK(p.blocks.size() == p.host_blocks.size(), "swap: {} blocks, {} on the host", p.blocks.size(),
               p.host_blocks.size());
  check_kv(p.kv, 0, "swap");
  cuda::swap(launch(queue), p);
  done("swap");
}

void CudaBackend::swap_ring(Queue& queue, const SwapRingParams& p) {
  ZIPAGE_CHECK(p.query_slot >= 0 && p.query_slot < p.ring.num_query_slots, "swap_ring: query slot {} of {}",
               p.query_slot, p.ring.num_query_slots);
  const size_t bytes = static_cast<size_t>(p.ring.window) * static_cast<size_t>(p.row_elements) * 2;
  for (int layer = 0; layer < p.num_layers; ++layer) {
    auto* device =
        static_cast<std::byte*>(p.ring.data) + (int64_t{layer} * p.ring.num_query_slots + p.query_slot) * bytes;
    std::byte* host = p.host + layer * bytes;
    if (p.to_host) {
      download(queue, host, device, bytes);
    } else {
      upload(queue, device, host, bytes);
    }
  }
}

void CudaBackend::kv_gather(Queue& queue, const KvGatherParams& p) {
  check_kv(p.kv, p.layer, "kv_gather");
  if (p.slots.empty()) return;
  const size_t values = p.slots.size() * static_cast<size_t>(p.kv.geometry.head_dim);
  const auto slots = allocate(p.slots.size_bytes(), "slots to look at", MemoryKind::kDevice);
  const auto out = allocate(2 * values * sizeof(float), "KV to look at", MemoryKind::kDevice);
  auto* k = out->as<float>();
  upload(queue, slots->data(), p.slots.data(), p.slots.size_bytes());
  cuda::kv_gather(launch(queue), p, slots->as<int32_t>(), static_cast<int>(p.slots.size()), k, k + values);
  done("kv_gather");
  download(queue, p.k, k, values * sizeof(float));
  download(queue, p.v, k + values, values * sizeof(float));
  queue.synchronize();
}

}  // namespace zipage::cuda
