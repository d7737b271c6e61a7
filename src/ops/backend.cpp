#include <fmt/format.h>

#include "ops/compress_ops.h"
#include "ops/ops.h"

namespace zipage {

#ifdef ZIPAGE_CUDA
std::unique_ptr<Backend> make_cuda_backend();
#endif

void Backend::append_and_attend(Queue& queue, const QkvRopeAppendParams& append, const AttentionParams& attend) {
  qkv_rope_append(queue, append);
  attention(queue, attend);
}

void Backend::linear_norm(Queue& queue, const LinearNormParams& p) {
  linear(queue, {.x = p.x, .weight = p.weight, .bias = p.bias, .out = p.out});
  rms_norm(queue, {.x = p.out, .residual = p.residual, .weight = p.norm, .eps = p.eps, .out = p.out});
}

void Backend::gated_linear(Queue& queue, const GatedLinearParams& p) {
  linear(queue, {.x = p.x, .weight = p.weight, .bias = p.bias, .out = p.gate_up});
  silu_mul(queue, {.gate_up = p.gate_up, .out = p.out});
}

void Backend::dense_chain(Queue& queue, const DenseChainParams& p) {
  const auto normed = [&](const Matrix& x, const DenseChainParams::Layer& layer, const float* norm) {
    linear_norm(queue, {.x = x,
                        .weight = layer.weight,
                        .bias = layer.bias,
                        .residual = p.residual,
                        .norm = norm,
                        .eps = p.eps,
                        .out = p.hidden});
  };
  normed(p.x, p.output, p.norm);
  gated_linear(
      queue,
      {.x = p.hidden, .weight = p.gate_up.weight, .bias = p.gate_up.bias, .gate_up = p.gate_up_out, .out = p.ffn});
  if (p.next_qkv.weight == nullptr) {
    linear(queue, {.x = p.ffn, .weight = p.down.weight, .bias = p.down.bias, .out = p.hidden});
    return;
  }
  normed(p.ffn, p.down, p.next_norm);
  linear(queue, {.x = p.hidden, .weight = p.next_qkv.weight, .bias = p.next_qkv.bias, .out = p.qkv});
}

void Backend::final_scores(Queue& queue, const FinalScoresParams& p) {
  const CompressionParams& asked = p.params;
  if (asked.attention) window_scores(queue, p.window());
  if (asked.attention && asked.value_norms) value_norms(queue, {.source = p.source, .scores = p.scores});
  if (asked.attention && asked.carry != ScoreCarry::kOff) {
    carry(queue, {.source = p.source, .carry = asked.carry, .decay = asked.decay, .scores = p.scores});
  }
  if (p.pools()) {
    pool_scores(queue, {.source = p.source, .width = asked.pool, .scores = p.scores, .out = p.pooled});
  }
  if (asked.scope != RedundancyScope::kOff) redundancy(queue, p.of_keys());
  combine(queue, p.combine());
}

std::unique_ptr<Backend> make_backend(std::string_view device, const CpuOptions& cpu) {
  if (device == "cpu") return make_cpu_backend(cpu);
#ifdef ZIPAGE_CUDA
  if (device == "cuda") return make_cuda_backend();
  if (device == "auto") {
    try {
      return make_cuda_backend();
    } catch (const DeviceError&) {
      return make_cpu_backend(cpu);
    }
  }
#else
  if (device == "cuda") throw DeviceError("This build has no CUDA backend; use --device cpu.");
  if (device == "auto") return make_cpu_backend(cpu);
#endif
  throw DeviceError(fmt::format("Unknown device \"{}\": use auto, cpu or cuda.", device));
}

}  // namespace zipage
