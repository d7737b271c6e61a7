#include "ops/cuda/cuda_linear.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "ops/cuda/launch.h"
#include "tensor/bf16.h"

namespace zipage::cuda {
namespace {

constexpr int64_t kStagingElements = int64_t{8} << 20;
constexpr int kCandidates = 12;
constexpr int kTimedRuns = 4;

void check_blas(cublasStatus_t status, const char* what) {
  if (status != CUBLAS_STATUS_SUCCESS) {
    throw DeviceError(fmt::format("cuBLASLt failed in {}: {}", what, cublasLtGetStatusString(status)));
  }
}

// Rows of one class share an algorithm: exact up to 16, then eight classes an octave.
int64_t row_class(int64_t rows) {
  int64_t step = 1;
  while (rows > 16 * step) step *= 2;
  return (rows + step - 1) / step * step;
}

// Two pinned buffers, so that the copy of one chunk runs beside the conversion of the next.
class Staging {
 public:
  Staging() {
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "the upload of weights");
    for (auto& slot : slots_) {
      check(cudaHostAlloc(&slot.data, kStagingElements * sizeof(Bf16), cudaHostAllocDefault), "the upload of weights");
      check(cudaEventCreateWithFlags(&slot.free, cudaEventDisableTiming), "the upload of weights");
    }
  }
  ~Staging() {
    cudaStreamSynchronize(stream_);
    for (auto& slot : slots_) {
      cudaFreeHost(slot.data);
      cudaEventDestroy(slot.free);
    }
    cudaStreamDestroy(stream_);
  }
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  void upload(const HostTensor& tensor, std::byte* to) {
    const int64_t count = tensor.rows() * tensor.cols();
    std::vector<float> expanded;
    for (int64_t first = 0; first < count; first += kStagingElements) {
      const int64_t elements = std::min(kStagingElements, count - first);
      Slot& slot = slots_[next_];
      next_ = (next_ + 1) % slots_.size();
      check(cudaEventSynchronize(slot.free), "the upload of weights");
      if (tensor.dtype == DType::kBF16) {
        std::memcpy(slot.data, tensor.data.data() + first * 2, static_cast<size_t>(elements) * 2);
      } else {
        expanded.resize(static_cast<size_t>(elements));
        dequantize(tensor, first, elements, expanded.data());
        std::transform(expanded.begin(), expanded.end(), static_cast<Bf16*>(slot.data),
                       [](float v) { return Bf16(v); });
      }
      check(cudaMemcpyAsync(to + first * 2, slot.data, static_cast<size_t>(elements) * 2, cudaMemcpyHostToDevice,
                            stream_),
            "the upload of weights");
      check(cudaEventRecord(slot.free, stream_), "the upload of weights");
    }
  }

 private:
  struct Slot {
    void* data = nullptr;
    cudaEvent_t free = nullptr;
  };
  std::array<Slot, 2> slots_;
  size_t next_ = 0;
  cudaStream_t stream_ = nullptr;
};

}  // namespace

CudaLinear::CudaLinear(std::span<const HostTensor> parts) {
  ZIPAGE_CHECK(!parts.empty(), "a linear layer needs at least one part");
  in_features_ = parts.front().cols();
  for (const HostTensor& part : parts) {
    ZIPAGE_CHECK(part.cols() == in_features_, "{}: {} columns, but {} has {}", part.name, part.cols(),
                 parts.front().name, in_features_);
    out_features_ += part.rows();
  }
  const cudaError_t status = cudaMalloc(&data_, bytes());
  if (status != cudaSuccess) {
    throw DeviceError(fmt::format("{}: no {} bytes of device memory left for it ({})", parts.front().name, bytes(),
                                  cudaGetErrorString(status)));
  }
  Staging staging;
  auto* to = static_cast<std::byte*>(data_);
  for (const HostTensor& part : parts) {
    staging.upload(part, to);
    to += part.rows() * part.cols() * 2;
  }
}

CudaLinear::~CudaLinear() {
  cudaFree(data_);
}

// Column-major as cuBLASLt sees it: out^T [out, rows] = weight [in, out]^T * x^T [in, rows].
struct Gemm::Problem {
  cublasLtMatmulDesc_t op = nullptr;
  cublasLtMatrixLayout_t weight = nullptr, x = nullptr, out = nullptr;

  Problem(const CudaLinear& w, int64_t rows, int64_t x_stride, const Matrix& o) {
    check_blas(cublasLtMatmulDescCreate(&op, CUBLAS_COMPUTE_32F, CUDA_R_32F), "linear");
    const cublasOperation_t transposed = CUBLAS_OP_T;
    check_blas(cublasLtMatmulDescSetAttribute(op, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof(transposed)),
               "linear");
    check_blas(cublasLtMatrixLayoutCreate(&weight, CUDA_R_16BF, w.in_features(), w.out_features(), w.in_features()),
               "linear");
    check_blas(cublasLtMatrixLayoutCreate(&x, CUDA_R_16BF, w.in_features(), rows, x_stride), "linear");
    check_blas(cublasLtMatrixLayoutCreate(&out, o.dtype == DType::kF32 ? CUDA_R_32F : CUDA_R_16BF, w.out_features(),
                                          rows, o.stride),
               "linear");
  }
  ~Problem() {
    cublasLtMatrixLayoutDestroy(out);
    cublasLtMatrixLayoutDestroy(x);
    cublasLtMatrixLayoutDestroy(weight);
    cublasLtMatmulDescDestroy(op);
  }
  Problem(const Problem&) = delete;
  Problem& operator=(const Problem&) = delete;
};

Gemm::Gemm() {
  check_blas(cublasLtCreate(&handle_), "its start");
}
Gemm::~Gemm() {
  cublasLtDestroy(handle_);
}

bool Gemm::candidates(const Problem& problem, int wanted, std::vector<cublasLtMatmulHeuristicResult_t>& found) const {
  cublasLtMatmulPreference_t preference = nullptr;
  check_blas(cublasLtMatmulPreferenceCreate(&preference), "linear");
  const size_t bytes = kGemmWorkspaceBytes;
  check_blas(
      cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes, sizeof(bytes)),
      "linear");
  found.resize(static_cast<size_t>(wanted));
  int count = 0;
  const cublasStatus_t status =
      cublasLtMatmulAlgoGetHeuristic(handle_, problem.op, problem.weight, problem.x, problem.out, problem.out,
                                     preference, wanted, found.data(), &count);
  cublasLtMatmulPreferenceDestroy(preference);
  found.resize(status == CUBLAS_STATUS_SUCCESS ? static_cast<size_t>(count) : 0);
  return !found.empty();
}

void Gemm::run(cudaStream_t stream, std::byte* workspace, const Matrix& x, const CudaLinear& weight,
               const Matrix& out) {
  const Problem problem(weight, x.rows, x.stride, out);
  const float one = 1.0F, zero = 0.0F;
  const auto multiply = [&](const cublasLtMatmulAlgo_t& algorithm) {
    return cublasLtMatmul(handle_, problem.op, &one, weight.data(), problem.weight, x.data, problem.x, &zero, out.data,
                          problem.out, out.data, problem.out, &algorithm, workspace, kGemmWorkspaceBytes, stream);
  };

  const Key key{row_class(x.rows), weight.in_features(), weight.out_features(), out.stride, out.dtype == DType::kF32};
  {
    std::unique_lock lock(mutex_);
    if (const auto it = chosen_.find(key); it != chosen_.end()) {
      const cublasLtMatmulAlgo_t algorithm = it->second;
      lock.unlock();
      // The rest of a class of rows may be out of an algorithm's reach: then the library chooses for this one call.
      if (multiply(algorithm) == CUBLAS_STATUS_SUCCESS) return;
    }
  }
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  check(cudaStreamIsCapturing(stream, &capture), "linear");
  const bool measure = capture == cudaStreamCaptureStatusNone;
  std::vector<cublasLtMatmulHeuristicResult_t> found;
  if (!candidates(problem, measure ? kCandidates : 1, found)) {
    throw DeviceError(fmt::format("cuBLASLt has no algorithm for [{}, {}] x [{}, {}]", x.rows, x.cols,
                                  weight.in_features(), weight.out_features()));
  }
  if (!measure || found.size() == 1) {
    check_blas(multiply(found.front().algo), "linear");
    return;
  }

  cudaEvent_t start = nullptr, stop = nullptr;
  check(cudaEventCreate(&start), "linear");
  check(cudaEventCreate(&stop), "linear");
  float best = 0.0F;
  const cublasLtMatmulAlgo_t* fastest = nullptr;
  for (const auto& candidate : found) {
    if (multiply(candidate.algo) != CUBLAS_STATUS_SUCCESS) continue;  // also warms up
    check(cudaEventRecord(start, stream), "linear");
    for (int i = 0; i < kTimedRuns; ++i) check_blas(multiply(candidate.algo), "linear");
    check(cudaEventRecord(stop, stream), "linear");
    check(cudaEventSynchronize(stop), "linear");
    float milliseconds = 0.0F;
    check(cudaEventElapsedTime(&milliseconds, start, stop), "linear");
    if (fastest == nullptr || milliseconds < best) fastest = &candidate.algo, best = milliseconds;
  }
  cudaEventDestroy(start);
  cudaEventDestroy(stop);
  if (fastest == nullptr) throw DeviceError("cuBLASLt ran none of its own candidates");
  check_blas(multiply(*fastest), "linear");
  const std::lock_guard lock(mutex_);
  chosen_.insert_or_assign(key, *fastest);
}

}  // namespace zipage::cuda
