// bf16 weights on the device and their GEMMs through cuBLASLt.
//
// Thread-safety: a Gemm may be used from several threads, each with a stream and a workspace of its own.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime.h>

#include <map>
#include <memory>
#include <mutex>
#include <span>

#include "ops/ops.h"

namespace zipage::cuda {

// [out_features, in_features] bf16, row-major.
class CudaLinear final : public Linear {
 public:
  // Uploads; when it returns, the parts are no longer needed. Throws DeviceError.
  explicit CudaLinear(std::span<const HostTensor> parts);
  ~CudaLinear() override;
  CudaLinear(const CudaLinear&) = delete;
  CudaLinear& operator=(const CudaLinear&) = delete;

  int64_t in_features() const override { return in_features_; }
  int64_t out_features() const override { return out_features_; }
  size_t bytes() const override { return static_cast<size_t>(in_features_ * out_features_) * 2; }
  const void* data() const { return data_; }

 private:
  void* data_ = nullptr;
  int64_t in_features_ = 0;
  int64_t out_features_ = 0;
};

inline constexpr size_t kGemmWorkspaceBytes = size_t{32} << 20;

// x [rows, in] times weight^T to out [rows, out], fp32 accumulation.
// The first call of a kind of shape outside a graph capture times the candidates on the stream and remembers the
// fastest; inside a capture an unknown shape takes the library's own first choice.
class Gemm {
 public:
  Gemm();
  ~Gemm();
  Gemm(const Gemm&) = delete;
  Gemm& operator=(const Gemm&) = delete;

  void run(cudaStream_t stream, std::byte* workspace, const Matrix& x, const CudaLinear& weight, const Matrix& out);

 private:
  struct Key {
    int64_t rows, in, out, out_stride;
    bool fp32_out;
    auto operator<=>(const Key&) const = default;
  };
  struct Problem;
  bool candidates(const Problem& problem, int wanted, std::vector<cublasLtMatmulHeuristicResult_t>& found) const;

  cublasLtHandle_t handle_ = nullptr;
  std::mutex mutex_;
  std::map<Key, cublasLtMatmulAlgo_t> chosen_;  // guarded by mutex_
};

}  // namespace zipage::cuda
