#include "ops/cpu/linear.h"

#include <cstring>
#include <vector>

#include "base/check.h"
#include "ops/cpu/cpu_backend.h"

namespace zipage::cpu {
namespace {

// One row of a weight as bf16, whatever its type.
void read_bf16(const HostTensor& tensor, int64_t row, std::vector<float>& wide, Bf16* out) {
  const int64_t n = tensor.cols();
  if (tensor.dtype == DType::kBF16) {
    std::memcpy(out, tensor.data.data() + row * n * static_cast<int64_t>(sizeof(Bf16)),
                static_cast<size_t>(n) * sizeof(Bf16));
    return;
  }
  wide.resize(static_cast<size_t>(n));
  dequantize(tensor, row * n, n, wide.data());
  for (int64_t i = 0; i < n; ++i) out[i] = Bf16(wide[static_cast<size_t>(i)]);
}

}  // namespace

CpuLinear::CpuLinear(std::span<const HostTensor> parts, ThreadPool& pool) {
  ZIPAGE_CHECK(!parts.empty(), "a linear layer needs weights");
  in_features_ = parts[0].cols();
  for (const HostTensor& part : parts) {
    ZIPAGE_CHECK(part.cols() == in_features_, "{} has {} columns where {} has {}", part.name, part.cols(),
                 parts[0].name, in_features_);
    out_features_ += part.rows();
  }
  memory_ = std::make_unique<CpuBuffer>(static_cast<size_t>(num_panels() * panel_elements()) * sizeof(Bf16), "weights");
  pool.parallel_for(num_panels(), 1, [&](int64_t begin, int64_t end, int) {
    std::vector<float> wide;
    std::vector<Bf16> row(static_cast<size_t>(in_features_));
    for (int64_t out = begin * kPanelColumns; out < std::min(end * kPanelColumns, out_features_); ++out) {
      const HostTensor* part = parts.data();
      int64_t part_row = out;
      for (; part_row >= part->rows(); ++part) part_row -= part->rows();
      read_bf16(*part, part_row, wide, row.data());
      Bf16* target = memory_->as<Bf16>() + out / kPanelColumns * panel_elements() + out % kPanelColumns * 2;
      for (int64_t k = 0; k < in_features_; ++k)
        target[k / 2 * 2 * kPanelColumns + k % 2] = row[static_cast<size_t>(k)];
    }
  });
}

void CpuLinear::read_row(int64_t index, float* out) const {
  const Bf16* source = panel(index / kPanelColumns) + index % kPanelColumns * 2;
  for (int64_t k = 0; k < in_features_; ++k) out[k] = static_cast<float>(source[k / 2 * 2 * kPanelColumns + k % 2]);
}

std::unique_ptr<Linear> CpuBackend::make_linear(std::span<const HostTensor> parts) {
  return std::make_unique<CpuLinear>(parts, pool_);
}

void CpuBackend::linear(Queue& queue, const LinearParams& params) {
  const auto& weight = static_cast<const CpuLinear&>(*params.weight);
  ZIPAGE_CHECK(params.x.dtype == DType::kF32 && params.out.dtype == DType::kF32,
               "the CPU computes linear layers in f32");
  ZIPAGE_CHECK(params.x.cols == weight.in_features() && params.out.cols == weight.out_features() &&
                   params.x.rows == params.out.rows,
               "linear: x [{}, {}], weight [{}, {}], out [{}, {}]", params.x.rows, params.x.cols, weight.out_features(),
               weight.in_features(), params.out.rows, params.out.cols);
  if (params.x.rows == 0) return;
  const auto panel = kernels(isa_).panel;
  executor(queue).parallel_for(weight.num_panels(), 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t index = begin; index < end; ++index) {
      const int64_t column = index * kPanelColumns;
      panel({.x = static_cast<const float*>(params.x.data),
             .x_stride = params.x.stride,
             .rows = params.x.rows,
             .in_features = weight.in_features(),
             .panel = weight.panel(index),
             .bias = params.bias == nullptr ? nullptr : params.bias + column,
             .out = static_cast<float*>(params.out.data) + column,
             .out_stride = params.out.stride,
             .columns = static_cast<int>(std::min<int64_t>(kPanelColumns, weight.out_features() - column))});
    }
  });
}

void CpuBackend::embedding(Queue& queue, const EmbeddingParams& params) {
  const auto& table = static_cast<const CpuLinear&>(*params.table);
  ZIPAGE_CHECK(params.out.dtype == DType::kF32 && params.out.cols == table.in_features(),
               "embedding: out has {} columns, the table {}", params.out.cols, table.in_features());
  executor(queue).parallel_for(params.out.rows, 16, [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      ZIPAGE_DCHECK(params.token_ids[row] >= 0 && params.token_ids[row] < table.out_features(), "token id {} of {}",
                    params.token_ids[row], table.out_features());
      table.read_row(params.token_ids[row], static_cast<float*>(params.out.data) + row * params.out.stride);
    }
  });
}

}  // namespace zipage::cpu
