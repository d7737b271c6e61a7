// bf16 weights on the device and their GEMMs through cuBLASLt.
//
// Thread-safety: a Gemm may be used from several threads, each with a stream and scratch of its own.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime.h>

#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "ops/cuda/gemm_hopper.h"
#include "ops/cuda/weight_staging.h"
#include "ops/ops.h"

namespace zipage::cuda {

// [out_features, in_features] bf16, row-major.
class CudaLinear final : public Linear {
 public:
  // Of what lies in memory; throws DeviceError naming `name` when there is none left.
  CudaLinear(std::string_view name, int64_t out_features, int64_t in_features);
  // Uploads; when it returns, the parts are no longer needed.
  CudaLinear(std::span<const HostTensor> parts, WeightStaging& staging);
  ~CudaLinear() override;
  CudaLinear(const CudaLinear&) = delete;
  CudaLinear& operator=(const CudaLinear&) = delete;

  int64_t in_features() const override { return in_features_; }
  int64_t out_features() const override { return out_features_; }
  size_t bytes() const override { return static_cast<size_t>(in_features_ * out_features_) * 2; }
  void* data() const { return data_; }

 private:
  void* data_ = nullptr;
  int64_t in_features_ = 0;
  int64_t out_features_ = 0;
};

inline constexpr size_t kGemmWorkspaceBytes = size_t{32} << 20;

// out [rows, out_features] = x [rows, in_features] times weight^T, plus bias; fp32 accumulation, one rounding. The
// launch's scratch begins with kGemmWorkspaceBytes for cuBLASLt.
//
// The first call of a class of shapes outside a graph capture times the candidates, the library's and our own, on the
// stream and remembers the fastest; inside a capture, and after end_tuning(), an unknown shape takes the library's own
// first choice.
class Gemm {
 public:
  Gemm();
  ~Gemm();
  Gemm(const Gemm&) = delete;
  Gemm& operator=(const Gemm&) = delete;

  void run(const Launch& launch, const Matrix& x, const CudaLinear& weight, const float* bias, const Matrix& out);
  // K is cut into `parts`, each a multiple of 8 long: products [parts, x.rows, out_features] fp32 whose sum is the
  // layer's, for a reader that adds them on the way. They may lie in the scratch behind what cuBLASLt has of it. False
  // where the library has no way to do it.
  bool run_in_parts(const Launch& launch, const Matrix& x, const CudaLinear& weight, int parts, float* products);
  void end_tuning();

 private:
  struct Key {
    int64_t rows, in, out, x_stride, out_stride;
    bool fp32_out, bias;
    int parts;
    auto operator<=>(const Key&) const = default;
  };
  struct Choice {
    std::optional<GemmPlan> own;  // else the library's algorithm
    cublasLtMatmulAlgo_t algorithm{};
  };
  struct Problem;
  struct Call;

  bool run(const Call& call, const std::vector<GemmPlan>& own);
  std::vector<Choice> candidates(const Problem& problem, int wanted) const;
  cublasStatus_t multiply(const Call& call, const Choice& choice, const Problem& problem) const;
  std::optional<Choice> known(const Key& key);
  bool can_measure(const Launch& launch);
  std::optional<Choice> measure(const Call& call, const Problem& problem, const std::vector<Choice>& candidates);
  void run_on_library(const Call& call);

  cublasLtHandle_t handle_ = nullptr;
  std::mutex mutex_;
  std::map<Key, Choice> chosen_;  // guarded by mutex_
  bool tuning_ = true;            // guarded by mutex_
  void* cold_memory_ = nullptr;   // written between timed runs, so that no weight lies in the cache; guarded by mutex_
};

}  // namespace zipage::cuda
