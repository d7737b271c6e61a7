// Everything between two attentions: one kernel for the fewest rows, op by op for more.
#include "base/check.h"
#include "ops/cuda/cuda_backend.h"
#include "ops/cuda/gemm_gated.h"
#include "ops/cuda/op_checks.h"

namespace zipage::cuda {
namespace {

const CudaLinear& cuda_linear(const DenseChainParams::Layer& layer) {
  return static_cast<const CudaLinear&>(*layer.weight);
}

}  // namespace

// silu(gate) * up of x in one kernel; false where none serves the shapes.
bool CudaBackend::gated(const Launch& where, const Matrix& x, const DenseChainParams::Layer& layer, const Matrix& out) {
  const void* weight = cuda_linear(layer).data();
  if (layer.bias != nullptr) return false;
  if (serves_gemm_hopper_gated(where, x, out)) {
    gemm_hopper_gated(where, x, weight, out);
  } else if (serves_gemm_gated(where, x, out)) {
    gemm_gated(where, x, weight, out);
  } else {
    return false;
  }
  done("linear");
  return true;
}

void CudaBackend::dense_chain(Queue& queue, const DenseChainParams& p) {
  const Launch where = launch(queue);
  check_act(p.x, "dense_chain", "x");
  check_act(p.residual, "dense_chain", "residual");
  check_act(p.hidden, "dense_chain", "hidden");
  check_act(p.ffn, "dense_chain", "ffn");
  const int64_t rows = p.x.rows, hidden = p.hidden.cols;
  const auto fits = [](const DenseChainParams::Layer& layer, int64_t in, int64_t out) {
    return layer.weight->in_features() == in && layer.weight->out_features() == out;
  };
  ZIPAGE_CHECK(p.residual.rows == rows && p.hidden.rows == rows && p.ffn.rows == rows && p.residual.cols == hidden &&
                   p.hidden.data != p.x.data && p.hidden.data != p.residual.data && fits(p.output, p.x.cols, hidden) &&
                   fits(p.gate_up, hidden, 2 * p.ffn.cols) && fits(p.down, p.ffn.cols, hidden),
               "dense_chain: {} rows of {}, hidden {}, ffn {}", rows, p.x.cols, hidden, p.ffn.cols);
  if (p.next_qkv.weight != nullptr) {
    check_act(p.qkv, "dense_chain", "qkv");
    ZIPAGE_CHECK(p.qkv.rows == rows && fits(p.next_qkv, hidden, p.qkv.cols), "dense_chain: qkv [{}, {}]", p.qkv.rows,
                 p.qkv.cols);
  }
  if (rows == 0) return;
  if (serves_dense_chain(where, p)) {
    const auto data = [](const DenseChainParams::Layer& layer) -> const void* {
      return layer.weight == nullptr ? nullptr : cuda_linear(layer).data();
    };
    cuda::dense_chain(where, p, {data(p.output), data(p.gate_up), data(p.down), data(p.next_qkv)});
    done("dense_chain");
  } else {
    linear(queue, {.x = p.x, .weight = p.output.weight, .bias = p.output.bias, .out = p.hidden});
    rms_norm(queue, {.x = p.hidden, .residual = p.residual, .weight = p.norm, .eps = p.eps, .out = p.hidden});
    if (!gated(where, p.hidden, p.gate_up, p.ffn)) {
      linear(queue, {.x = p.hidden, .weight = p.gate_up.weight, .bias = p.gate_up.bias, .out = p.gate_up_out});
      silu_mul(queue, {.gate_up = p.gate_up_out, .out = p.ffn});
    }
    linear(queue, {.x = p.ffn, .weight = p.down.weight, .bias = p.down.bias, .out = p.hidden});
    if (p.next_qkv.weight == nullptr) return;
    rms_norm(queue, {.x = p.hidden, .residual = p.residual, .weight = p.next_norm, .eps = p.eps, .out = p.hidden});
    linear(queue, {.x = p.hidden, .weight = p.next_qkv.weight, .bias = p.next_qkv.bias, .out = p.qkv});
  }
}

}  // namespace zipage::cuda
