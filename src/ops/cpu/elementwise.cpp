// rms_norm, silu_mul, gather_rows: one row at a time.
#include <cstring>

#include "base/check.h"
#include "ops/cpu/cpu_backend.h"
#include "ops/cpu/kernels.h"

namespace zipage::cpu {
namespace {

constexpr int64_t kElementsPerTask = 16384;  // below this, waking another thread costs more than it brings

int64_t rows_per_task(int64_t cols) {
  return std::max<int64_t>(1, kElementsPerTask / std::max<int64_t>(cols, 1));
}

float* row_of(const Matrix& matrix, int64_t row) {
  return static_cast<float*>(matrix.data) + row * matrix.stride;
}

}  // namespace

void CpuBackend::rms_norm(Queue& queue, const RmsNormParams& params) {
  ZIPAGE_CHECK(params.x.dtype == DType::kF32 && params.out.dtype == DType::kF32,
               "rms_norm: the CPU's activations are f32");
  ZIPAGE_CHECK(params.x.rows == params.out.rows && params.x.cols == params.out.cols,
               "rms_norm: x [{}, {}], out [{}, {}]", params.x.rows, params.x.cols, params.out.rows, params.out.cols);
  const bool has_residual = params.residual.data != nullptr;
  ZIPAGE_CHECK(!has_residual || (params.residual.dtype == DType::kF32 && params.residual.rows == params.x.rows &&
                                 params.residual.cols == params.x.cols),
               "rms_norm: residual [{}, {}], x [{}, {}]", params.residual.rows, params.residual.cols, params.x.rows,
               params.x.cols);
  const Kernels& kernel = kernels(isa_);
  executor(queue).parallel_for(params.x.rows, rows_per_task(params.x.cols), [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      const float* x = row_of(params.x, row);
      if (has_residual) {
        float* residual = row_of(params.residual, row);
        kernel.add(x, residual, params.x.cols);
        x = residual;
      }
      kernel.rms_norm(x, params.weight, params.eps, params.x.cols, row_of(params.out, row));
    }
  });
}

void CpuBackend::silu_mul(Queue& queue, const SiluMulParams& params) {
  ZIPAGE_CHECK(params.gate_up.dtype == DType::kF32 && params.out.dtype == DType::kF32,
               "silu_mul: the CPU's activations are f32");
  ZIPAGE_CHECK(params.gate_up.rows == params.out.rows && params.gate_up.cols == 2 * params.out.cols,
               "silu_mul: gate_up [{}, {}], out [{}, {}]", params.gate_up.rows, params.gate_up.cols, params.out.rows,
               params.out.cols);
  const Kernels& kernel = kernels(isa_);
  executor(queue).parallel_for(
      params.out.rows, rows_per_task(4 * params.out.cols), [&](int64_t begin, int64_t end, int) {
        for (int64_t row = begin; row < end; ++row) {
          const float* gate = row_of(params.gate_up, row);
          kernel.silu_mul(gate, gate + params.out.cols, params.out.cols, row_of(params.out, row));
        }
      });
}

void CpuBackend::gather_rows(Queue& queue, const GatherRowsParams& params) {
  ZIPAGE_CHECK(params.x.dtype == params.out.dtype && params.x.cols == params.out.cols,
               "gather_rows: {} columns into {}", params.x.cols, params.out.cols);
  const auto size = static_cast<int64_t>(traits(params.x.dtype).block_bytes);
  executor(queue).parallel_for(params.out.rows, rows_per_task(params.out.cols), [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      std::memcpy(static_cast<std::byte*>(params.out.data) + row * params.out.stride * size,
                  static_cast<const std::byte*>(params.x.data) + params.rows[row] * params.x.stride * size,
                  static_cast<size_t>(params.out.cols * size));
    }
  });
}

}  // namespace zipage::cpu
