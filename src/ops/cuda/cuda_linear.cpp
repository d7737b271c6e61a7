#include "ops/cuda/cuda_linear.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "base/check.h"
#include "ops/cuda/launch.h"

namespace zipage::cuda {
namespace {

// A head's GEMM takes as long as six layers', and its candidates differ by less: trying few keeps the start short.
constexpr int kCandidates = 40, kCandidatesOfHead = 6;
constexpr int kTimedRuns = 8, kTimedRunsOfHead = 3;
constexpr size_t kHeadBytes = size_t{512} << 20;  // of weights, from which on a layer counts as one
constexpr float kHopeful = 1.1F;                  // times the fastest so far
// Up to so many rows a GEMM is timed behind a small kernel, as in a step: our own fetches weights before that has
// ended.
constexpr int kEarlyRows = 64;
// Two blocks that share K are worth more in a step than alone, since each takes in half of x: where they took 1 us
// longer alone (12,288 to 4,096 columns), a layer took 2 us less at 64 rows and 5 us less at 32.
constexpr float kShareMilliseconds = 1.5e-3F;
constexpr size_t kColdBytes = size_t{96} << 20;

void check_blas(cublasStatus_t status, const char* what) {
  if (status != CUBLAS_STATUS_SUCCESS) {
    throw DeviceError(fmt::format("cuBLASLt failed in {}: {}", what, cublasLtGetStatusString(status)));
  }
}

// Rows of one class share an algorithm: exact up to 8, then four classes an octave.
int64_t row_class(int64_t rows) {
  int64_t step = 1;
  while (rows > 8 * step) step *= 2;
  return (rows + step - 1) / step * step;
}

}  // namespace

CudaLinear::CudaLinear(std::string_view name, int64_t out_features, int64_t in_features)
    : in_features_(in_features), out_features_(out_features) {
  const cudaError_t status = cudaMalloc(&data_, bytes());
  if (status != cudaSuccess) {
    throw DeviceError(
        fmt::format("{}: no {} bytes of device memory left for it ({})", name, bytes(), cudaGetErrorString(status)));
  }
}

namespace {

int64_t stacked_rows(std::span<const HostTensor> parts) {
  ZIPAGE_CHECK(!parts.empty(), "a linear layer needs at least one part");
  int64_t rows = 0;
  for (const HostTensor& part : parts) {
    ZIPAGE_CHECK(part.cols() == parts.front().cols(), "{}: {} columns, but {} has {}", part.name, part.cols(),
                 parts.front().name, parts.front().cols());
    rows += part.rows();
  }
  return rows;
}

}  // namespace

CudaLinear::CudaLinear(std::span<const HostTensor> parts, WeightStaging& staging)
    : CudaLinear(parts.front().name, stacked_rows(parts), parts.front().cols()) {
  auto* to = static_cast<std::byte*>(data_);
  for (const HostTensor& part : parts) {
    staging.upload(part, to);
    to += part.rows() * part.cols() * 2;
  }
  staging.wait();
}

CudaLinear::~CudaLinear() {
  cudaFree(data_);
}

struct Gemm::Call {
  const Launch& launch;
  const Matrix& x;
  const CudaLinear& weight;
  const float* bias;
  const Matrix& out;
  int parts = 1;  // of K, with products of their own
};

// Column-major as cuBLASLt sees it: out^T [out, rows] = weight [in, out]^T * x^T [in, rows].
struct Gemm::Problem {
  cublasLtMatmulDesc_t op = nullptr;
  cublasLtMatrixLayout_t weight = nullptr, x = nullptr, out = nullptr;

  explicit Problem(const Call& call) {
    const int64_t in = call.weight.in_features(), features = call.weight.out_features(), depth = in / call.parts;
    const cudaDataType_t out_type = call.out.dtype == DType::kF32 ? CUDA_R_32F : CUDA_R_16BF;
    check_blas(cublasLtMatmulDescCreate(&op, CUBLAS_COMPUTE_32F, CUDA_R_32F), "linear");
    const cublasOperation_t transposed = CUBLAS_OP_T;
    check_blas(cublasLtMatmulDescSetAttribute(op, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof(transposed)),
               "linear");
    check_blas(cublasLtMatrixLayoutCreate(&weight, CUDA_R_16BF, depth, features, in), "linear");
    check_blas(cublasLtMatrixLayoutCreate(&x, CUDA_R_16BF, depth, call.x.rows, call.x.stride), "linear");
    check_blas(cublasLtMatrixLayoutCreate(&out, out_type, features, call.x.rows, call.out.stride), "linear");
    if (call.parts > 1) {
      take_apart(weight, call.parts, depth);
      take_apart(x, call.parts, depth);
      take_apart(out, call.parts, call.x.rows * call.out.stride);
    }
  }
  ~Problem() {
    cublasLtMatrixLayoutDestroy(out);
    cublasLtMatrixLayoutDestroy(x);
    cublasLtMatrixLayoutDestroy(weight);
    cublasLtMatmulDescDestroy(op);
  }
  Problem(const Problem&) = delete;
  Problem& operator=(const Problem&) = delete;

 private:
  static void take_apart(cublasLtMatrixLayout_t layout, int32_t parts, int64_t distance) {
    check_blas(cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &parts, sizeof(parts)),
               "linear");
    check_blas(cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &distance,
                                                sizeof(distance)),
               "linear");
  }
};

Gemm::Gemm() {
  check_blas(cublasLtCreate(&handle_), "its start");
}

Gemm::~Gemm() {
  cublasLtDestroy(handle_);
  cudaFree(cold_memory_);
}

std::vector<Gemm::Choice> Gemm::candidates(const Problem& problem, int wanted) const {
  cublasLtMatmulPreference_t preference = nullptr;
  check_blas(cublasLtMatmulPreferenceCreate(&preference), "linear");
  const size_t bytes = kGemmWorkspaceBytes;
  check_blas(
      cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes, sizeof(bytes)),
      "linear");
  std::vector<cublasLtMatmulHeuristicResult_t> found(static_cast<size_t>(wanted));
  int count = 0;
  const cublasStatus_t status =
      cublasLtMatmulAlgoGetHeuristic(handle_, problem.op, problem.weight, problem.x, problem.out, problem.out,
                                     preference, wanted, found.data(), &count);
  cublasLtMatmulPreferenceDestroy(preference);
  std::vector<Choice> choices;
  for (int i = 0; status == CUBLAS_STATUS_SUCCESS && i < count; ++i) {
    choices.push_back({.own = std::nullopt, .algorithm = found[static_cast<size_t>(i)].algo});
  }
  return choices;
}

cublasStatus_t Gemm::multiply(const Call& call, const Choice& choice, const Problem& problem) const {
  if (choice.own) {
    gemm_hopper(call.launch, *choice.own, call.x, call.weight.data(), call.bias, call.out);
    return CUBLAS_STATUS_SUCCESS;
  }
  const float one = 1.0F, zero = 0.0F;
  return cublasLtMatmul(handle_, problem.op, &one, call.weight.data(), problem.weight, call.x.data, problem.x, &zero,
                        call.out.data, problem.out, call.out.data, problem.out, &choice.algorithm, call.launch.scratch,
                        kGemmWorkspaceBytes, call.launch.stream);
}

// The fastest of those that run.
std::optional<Gemm::Choice> Gemm::measure(const Call& call, const Problem& problem,
                                          const std::vector<Choice>& candidates) {
  if (cold_memory_ == nullptr && cudaMalloc(&cold_memory_, kColdBytes) != cudaSuccess) {
    cudaGetLastError();  // the choice is the worse for it, no more
    cold_memory_ = nullptr;
  }
  const cudaStream_t stream = call.launch.stream;
  cudaEvent_t start = nullptr, stop = nullptr;
  check(cudaEventCreate(&start), "linear");
  check(cudaEventCreate(&stop), "linear");
  RmsNormParams before{.x = call.x, .out = call.x};
  before.out.stride = call.x.cols;
  before.out.data = call.launch.scratch + kGemmWorkspaceBytes;
  before.weight = reinterpret_cast<const float*>(call.launch.scratch);  // any numbers
  const size_t room = call.launch.scratch_bytes - kGemmWorkspaceBytes;
  if (call.x.rows > kEarlyRows || static_cast<size_t>(call.x.rows * call.x.cols) * 2 > room) before.out.data = nullptr;
  const auto time = [&](const Choice& candidate) {  // milliseconds
    if (cold_memory_ != nullptr) check(cudaMemsetAsync(cold_memory_, 0, kColdBytes, stream), "linear");
    check(cudaEventRecord(start, stream), "linear");
    if (before.out.data != nullptr) rms_norm(call.launch, before);
    check_blas(multiply(call, candidate, problem), "linear");
    check(cudaEventRecord(stop, stream), "linear");
    check(cudaEventSynchronize(stop), "linear");
    float milliseconds = 0.0F;
    check(cudaEventElapsedTime(&milliseconds, start, stop), "linear");
    const bool shares = candidate.own && candidate.own->split == 2 && call.x.rows <= kEarlyRows;
    return shares ? milliseconds - kShareMilliseconds : milliseconds;
  };
  struct Timed {
    const Choice* choice;
    float milliseconds;  // the least
  };
  std::vector<Timed> timed;
  for (const Choice& candidate : candidates) {
    if (multiply(call, candidate, problem) != CUBLAS_STATUS_SUCCESS) continue;  // also warms up
    timed.push_back({&candidate, time(candidate)});
  }
  // Those that may be the fastest go on, in turns.
  const int runs = call.weight.bytes() >= kHeadBytes ? kTimedRunsOfHead : kTimedRuns;
  const auto faster = [](const Timed& a, const Timed& b) { return a.milliseconds < b.milliseconds; };
  for (int i = 1; i < runs && !timed.empty(); ++i) {
    const float limit = std::min_element(timed.begin(), timed.end(), faster)->milliseconds * kHopeful;
    std::erase_if(timed, [&](const Timed& t) { return t.milliseconds > limit; });
    for (Timed& t : timed) t.milliseconds = std::min(t.milliseconds, time(*t.choice));
  }
  cudaEventDestroy(start);
  cudaEventDestroy(stop);
  if (timed.empty()) return std::nullopt;
  return *std::min_element(timed.begin(), timed.end(), faster)->choice;
}

void Gemm::end_tuning() {
  const std::lock_guard lock(mutex_);
  tuning_ = false;
  cudaFree(cold_memory_);
  cold_memory_ = nullptr;
}

// With a bias: the product in fp32, as many rows at a time as there is scratch for, and the sum rounded once.
void Gemm::run_on_library(const Call& call) {
  const int64_t stride = (call.out.cols + 7) / 8 * 8;
  const auto room = static_cast<int64_t>((call.launch.scratch_bytes - kGemmWorkspaceBytes) / sizeof(float)) / stride;
  ZIPAGE_CHECK(room > 0, "linear: {} features with a bias", call.out.cols);
  const int64_t out_element = call.out.dtype == DType::kF32 ? 4 : 2;
  for (int64_t row = 0; row < call.x.rows; row += room) {
    Matrix x = call.x, out = call.out;
    x.rows = out.rows = std::min(room, call.x.rows - row);
    x.data = static_cast<std::byte*>(x.data) + row * x.stride * 2;
    out.data = static_cast<std::byte*>(out.data) + row * out.stride * out_element;
    const Matrix product{.data = call.launch.scratch + kGemmWorkspaceBytes,
                         .dtype = DType::kF32,
                         .rows = x.rows,
                         .cols = out.cols,
                         .stride = stride};
    run(call.launch, x, call.weight, nullptr, product);
    add_bias(call.launch, product, call.bias, out);
  }
}

std::optional<Gemm::Choice> Gemm::known(const Key& key) {
  const std::lock_guard lock(mutex_);
  const auto it = chosen_.find(key);
  return it == chosen_.end() ? std::nullopt : std::optional(it->second);
}

bool Gemm::can_measure(const Launch& launch) {
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  check(cudaStreamIsCapturing(launch.stream, &capture), "linear");
  const std::lock_guard lock(mutex_);
  return tuning_ && capture == cudaStreamCaptureStatusNone;
}

void Gemm::run(const Launch& launch, const Matrix& x, const CudaLinear& weight, const float* bias, const Matrix& out) {
  const Call call{launch, x, weight, bias, out};
  const std::vector<GemmPlan> own =
      gemm_hopper_plans(launch, x.rows, weight.in_features(), weight.out_features(), x.stride, out.stride);
  if (bias != nullptr && own.empty()) return run_on_library(call);
  if (!run(call, own)) {
    throw DeviceError(fmt::format("cuBLASLt has no algorithm for [{}, {}] by [{}, {}].", x.rows, x.cols,
                                  weight.out_features(), weight.in_features()));
  }
}

bool Gemm::run_in_parts(const Launch& launch, const Matrix& x, const CudaLinear& weight, int parts, float* products) {
  ZIPAGE_CHECK(weight.in_features() % (8 * parts) == 0, "linear: {} columns in {} parts", weight.in_features(), parts);
  const int64_t features = weight.out_features();
  const Matrix out{.data = products, .dtype = DType::kF32, .rows = x.rows, .cols = features, .stride = features};
  return run({launch, x, weight, nullptr, out, parts}, {});
}

// With the fastest of the library's algorithms and our `own`, where that is known or can be found out; false: there is
// none.
bool Gemm::run(const Call& call, const std::vector<GemmPlan>& own) {
  const int64_t in = call.weight.in_features(), features = call.weight.out_features();
  const Key key{
      row_class(call.x.rows), in,        features, call.x.stride, call.out.stride, call.out.dtype == DType::kF32,
      call.bias != nullptr,   call.parts};
  const std::optional<Choice> choice = known(key);
  if (choice && choice->own) {
    gemm_hopper(call.launch, *choice->own, call.x, call.weight.data(), call.bias, call.out);
    return true;
  }
  const Problem problem(call);
  // The rest of a class of rows may be out of an algorithm's reach: then the library chooses for this one call.
  if (choice && multiply(call, *choice, problem) == CUBLAS_STATUS_SUCCESS) return true;

  const bool measures = can_measure(call.launch);
  std::vector<Choice> all;
  for (const GemmPlan& plan : own) all.push_back({.own = plan});
  if (call.bias == nullptr) {
    const int tried = call.weight.bytes() >= kHeadBytes ? kCandidatesOfHead : kCandidates;
    const std::vector<Choice> library = candidates(problem, measures ? tried : 1);
    all.insert(all.begin(), library.begin(), library.end());
  }
  if (all.empty()) return false;
  std::optional<Choice> taken = all.front();
  if (measures) {
    const std::lock_guard lock(mutex_);
    taken = measure(call, problem, all);
    if (taken) chosen_.insert_or_assign(key, *taken);
  }
  if (!taken) return false;
  const cublasStatus_t status = multiply(call, *taken, problem);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED) return false;
  check_blas(status, "linear");
  if (!measures) {
    const std::lock_guard lock(mutex_);
    if (!tuning_) chosen_.insert_or_assign(key, *taken);
  }
  return true;
}

}  // namespace zipage::cuda
