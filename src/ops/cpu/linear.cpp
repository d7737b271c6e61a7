#include "ops/cpu/linear.h"

#include <algorithm>

#include "base/check.h"
#include "ops/cpu/cpu_backend.h"
#include "ops/cpu/pack.h"

namespace zipage::cpu {
namespace {

// The part that row `row` of the stack lies in, and its row there.
std::pair<const HostTensor*, int64_t> locate(std::span<const HostTensor> parts, int64_t row) {
  const HostTensor* part = parts.data();
  for (; row >= part->rows(); ++part) row -= part->rows();
  return {part, row};
}

}  // namespace

CpuLinear::CpuLinear(std::span<const HostTensor> parts, ThreadPool& pool, Arena& arena) {
  ZIPAGE_CHECK(!parts.empty(), "a linear layer needs weights");
  in_features_ = parts[0].cols();
  for (const HostTensor& part : parts) {
    ZIPAGE_CHECK(part.cols() == in_features_, "{} has {} columns where {} has {}", part.name, part.cols(),
                 parts[0].name, in_features_);
    out_features_ += part.rows();
  }
  int64_t bytes = 0;
  for (int64_t first = 0; first < out_features_; first += kPanelColumns) {
    PanelKind kind = panel_kind(*locate(parts, first).first);
    for (int64_t row = first + 1; row < std::min(first + kPanelColumns, out_features_); ++row) {
      kind = common_kind(kind, panel_kind(*locate(parts, row).first));
    }
    panels_.push_back({kind, bytes});
    quantised_ |= kind != PanelKind::kBf16;
    bytes += panel_bytes(kind, in_features_);
  }
  bytes_ = static_cast<size_t>(bytes);
  memory_ = arena.take(bytes_, "weights");
  pool.parallel_for(num_panels(), 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin * kPanelColumns; row < std::min(end * kPanelColumns, out_features_); ++row) {
      const auto [part, part_row] = locate(parts, row);
      const Panel& panel = panels_[static_cast<size_t>(row / kPanelColumns)];
      pack_row(*part, part_row, panel.kind, static_cast<int>(row % kPanelColumns), memory_.data + panel.offset);
    }
  });
}

void CpuLinear::read_row(int64_t index, float* out) const {
  unpack_row(data(index / kPanelColumns), kind(index / kPanelColumns), static_cast<int>(index % kPanelColumns),
             in_features_, out);
}

std::unique_ptr<Linear> CpuBackend::make_linear(std::span<const HostTensor> parts) {
  return std::make_unique<CpuLinear>(parts, pool_, weights_);
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
  const Kernels& kernel = kernels(isa_);
  Executor& threads = executor(queue);
  const auto* x = static_cast<const float*>(params.x.data);
  float* sums = nullptr;
  if (weight.quantised()) {
    const int64_t groups = weight.in_features() / kQuantGroup;
    sums =
        reinterpret_cast<float*>(threads.shared_scratch(static_cast<size_t>(params.x.rows * groups) * sizeof(float)));
    threads.parallel_for(params.x.rows, 32, [&](int64_t begin, int64_t end, int) {
      for (int64_t row = begin; row < end; ++row) {
        kernel.group_sums(x + row * params.x.stride, groups * kQuantGroup, sums + row * groups);
      }
    });
  }
  threads.parallel_for(weight.num_panels(), 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t index = begin; index < end; ++index) {
      const int64_t column = index * kPanelColumns;
      const PanelArgs args{
          .x = x,
          .x_stride = params.x.stride,
          .rows = params.x.rows,
          .in_features = weight.in_features(),
          .panel = weight.data(index),
          .group_sums = sums,
          .bias = params.bias == nullptr ? nullptr : params.bias + column,
          .out = static_cast<float*>(params.out.data) + column,
          .out_stride = params.out.stride,
          .columns = static_cast<int>(std::min<int64_t>(kPanelColumns, weight.out_features() - column)),
      };
      switch (weight.kind(index)) {
        case PanelKind::kBf16:
          kernel.panel(args);
          break;
        case PanelKind::kNibbles:
          kernel.nibble_panel(args);
          break;
        case PanelKind::kBytes:
          kernel.byte_panel(args);
          break;
      }
    }
  });
}

void CpuBackend::embedding(Queue& queue, const EmbeddingParams& params) {
  const auto& table = static_cast<const CpuLinear&>(*params.table);
  ZIPAGE_CHECK(params.out.dtype == DType::kF32 && params.out.cols == table.in_features(),
               "embedding: out has {} columns, the table {}", params.out.cols, table.in_features());
  executor(queue).parallel_for(params.out.rows, 16, [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      int32_t id = params.token_ids[row];
      if (id < 0) id = std::max(0, params.sampled[-1 - id]);
      ZIPAGE_DCHECK(id < table.out_features(), "token id {} of {}", id, table.out_features());
      table.read_row(id, static_cast<float*>(params.out.data) + row * params.out.stride);
    }
  });
}

}  // namespace zipage::cpu
