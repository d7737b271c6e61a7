// Everything between two attentions: one kernel for the fewest rows, layers that do the norms between them for some
// more, op by op for the rest.
#include "base/check.h"
#include "ops/cuda/cuda_backend.h"
#include "ops/cuda/gemm_gated.h"
#include "ops/cuda/op_checks.h"

namespace zipage::cuda {
namespace {

// With more, the library's GEMMs and norms of their own are faster: 118 us a layer of Qwen3-8B at 80 rows against 123.
constexpr int kMaxRowsOfNorms = 64;
// With more, GEMMs fill the multiprocessors by themselves: 203 to 209 us a layer at 320 rows against 200 to 208.
constexpr int kMaxRowsOfHalves = 256;

const CudaLinear& cuda_linear(const DenseChainParams::Layer& layer) {
  return static_cast<const CudaLinear&>(*layer.weight);
}

}  // namespace

// False where a layer is not served.
bool CudaBackend::norms_within(const Launch& where, Queue& queue, const DenseChainParams& p) {
  const bool last = p.next_qkv.weight == nullptr;
  if (p.x.rows > kMaxRowsOfNorms || p.gate_up.bias != nullptr || !serves_gemm_hopper_gated(where, p.hidden, p.ffn))
    return false;
  const auto plan = [&](const Matrix& x, const Matrix& out, bool norm_behind) {
    return gemm_hopper_plan(where, x.rows, x.cols, out.cols, x.stride, out.stride, norm_behind);
  };
  const auto output = plan(p.x, p.hidden, true);
  const auto down = last ? std::nullopt : plan(p.ffn, p.hidden, true);
  const auto next = last ? std::nullopt : plan(p.hidden, p.qkv, false);
  if (!output || (!last && (!down || !next))) return false;

  auto* squares = reinterpret_cast<float*>(where.scratch + kGemmWorkspaceBytes);
  const auto layer = [&](const Matrix& x, const DenseChainParams::Layer& weights, const GemmPlan& how,
                         const float* norm) {
    gemm_hopper(where, how, x, cuda_linear(weights).data(), weights.bias, p.hidden, {},
                {.residual = p.residual, .weight = norm, .squares = squares});
    return NormInFront{.squares = squares, .parts = gemm_hopper_parts(how, p.hidden.cols), .eps = p.eps};
  };
  const NormInFront norm = layer(p.x, p.output, *output, p.norm);
  gemm_hopper_gated(where, p.hidden, cuda_linear(p.gate_up).data(), p.ffn, norm);
  done("dense_chain");
  if (last) {
    linear(queue, {.x = p.ffn, .weight = p.down.weight, .bias = p.down.bias, .out = p.hidden});
    return true;
  }
  const NormInFront next_norm = layer(p.ffn, p.down, *down, p.next_norm);
  gemm_hopper(where, *next, p.hidden, cuda_linear(p.next_qkv).data(), p.next_qkv.bias, p.qkv, next_norm);
  done("dense_chain");
  return true;
}

// The layer leaves the products of both halves of K, which fills the multiprocessors, and the norm adds them, where
// that is a gain.
void CudaBackend::linear_norm(Queue& queue, const LinearNormParams& p) {
  constexpr int kHalves = 2;
  constexpr int64_t kAligned = 64;  // elements that each half and its products begin at a multiple of
  const Launch where = launch(queue);
  check_act(p.x, "linear_norm", "x");
  check_act(p.residual, "linear_norm", "residual");
  check_act(p.out, "linear_norm", "out");
  const int64_t rows = p.x.rows;
  ZIPAGE_CHECK(p.x.cols == p.weight->in_features() && p.out.cols == p.weight->out_features() && p.out.rows == rows &&
                   p.residual.rows == rows && p.residual.data != p.out.data && p.residual.data != p.x.data,
               "linear_norm: [{}, {}] by [{}, {}] to [{}, {}]", rows, p.x.cols, p.weight->out_features(),
               p.weight->in_features(), p.out.rows, p.out.cols);
  const auto bytes = static_cast<size_t>(kHalves * rows * p.out.cols) * sizeof(float);
  const bool serves = rows > kMaxRowsOfNorms && rows <= kMaxRowsOfHalves && where.compute_capability == 90 &&
                      p.bias == nullptr && p.x.cols % (kAligned * kHalves) == 0 && p.out.cols % kAligned == 0 &&
                      p.out.cols <= kMaxNormSize && kGemmWorkspaceBytes + bytes <= where.scratch_bytes;
  auto* products = reinterpret_cast<float*>(where.scratch + kGemmWorkspaceBytes);
  if (!serves || !gemm_.run_in_parts(where, p.x, static_cast<const CudaLinear&>(*p.weight), kHalves, products))
    return Backend::linear_norm(queue, p);
  rms_norm_of_parts(where, {.data = products, .count = kHalves},
                    {.x = p.out, .residual = p.residual, .weight = p.norm, .eps = p.eps, .out = p.out});
  done("linear_norm");
}

void CudaBackend::gated_linear(Queue& queue, const GatedLinearParams& p) {
  const Launch where = launch(queue);
  check_act(p.x, "gated_linear", "x");
  check_act(p.out, "gated_linear", "out");
  const auto& weight = static_cast<const CudaLinear&>(*p.weight);
  ZIPAGE_CHECK(p.x.cols == weight.in_features() && 2 * p.out.cols == weight.out_features() && p.x.rows == p.out.rows,
               "gated_linear: [{}, {}] by [{}, {}] to [{}, {}]", p.x.rows, p.x.cols, weight.out_features(),
               weight.in_features(), p.out.rows, p.out.cols);
  if (p.x.rows == 0) return;
  if (p.bias == nullptr && serves_gemm_hopper_gated(where, p.x, p.out)) {
    gemm_hopper_gated(where, p.x, weight.data(), p.out);
  } else if (p.bias == nullptr && serves_gemm_gated(where, p.x, p.out)) {
    gemm_gated(where, p.x, weight.data(), p.out);
  } else {
    return Backend::gated_linear(queue, p);
  }
  done("gated_linear");
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
  } else if (!norms_within(where, queue, p)) {
    Backend::dense_chain(queue, p);
  }
}

}  // namespace zipage::cuda
