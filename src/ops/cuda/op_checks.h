// What the Backend's ops on CUDA check before and after a kernel's start.
#pragma once

#include "base/check.h"
#include "ops/cuda/launch.h"

namespace zipage::cuda {

// Kernels read 16 bytes at a time.
inline void check_act(const Matrix& m, const char* op, const char* name) {
  ZIPAGE_CHECK(m.dtype == DType::kBF16 && m.data != nullptr && m.cols % 8 == 0 && m.stride % 8 == 0 &&
                   m.stride >= m.cols && reinterpret_cast<uintptr_t>(m.data) % 16 == 0,
               "{}: {} must be bf16 rows of a multiple of 8 elements, 16-byte aligned ({} rows, {} columns, stride {})",
               op, name, m.rows, m.cols, m.stride);
}

inline void done(const char* op) {
  check(cudaGetLastError(), op);
}

}  // namespace zipage::cuda
