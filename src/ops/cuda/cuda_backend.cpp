#include "ops/cuda/cuda_backend.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/check.h"

namespace zipage {
namespace cuda {
namespace {

// For GEMMs, products of halves of K and the split of decode attention; the compression's stages bring their own.
constexpr size_t kScratchBytes = kGemmWorkspaceBytes + (size_t{32} << 20);
// One block's static shared memory comes on top of what a launcher asks for.
constexpr int kStaticSharedBytes = 1280;

class CudaEvent final : public Event {
 public:
  explicit CudaEvent(cudaStream_t stream) {
    check(cudaEventCreate(&event_), "an event");
    check(cudaEventRecord(event_, stream), "an event");
  }
  ~CudaEvent() override { cudaEventDestroy(event_); }
  CudaEvent(const CudaEvent&) = delete;
  CudaEvent& operator=(const CudaEvent&) = delete;

  bool done() const override {
    const cudaError_t status = cudaEventQuery(event_);
    if (status == cudaErrorNotReady) return false;
    check(status, "work on the device");
    return true;
  }
  void wait() const override { check(cudaEventSynchronize(event_), "work on the device"); }
  double seconds_since(const Event& earlier) const override {
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, static_cast<const CudaEvent&>(earlier).event_, event_), "a time");
    return static_cast<double>(milliseconds) * 1e-3;
  }
  cudaEvent_t get() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

class CudaBuffer final : public Buffer {
 public:
  CudaBuffer(size_t bytes, std::string_view name, MemoryKind kind) : kind_(kind) {
    bytes_ = bytes;
    const size_t asked = std::max<size_t>(bytes, 1);
    void* memory = nullptr;
    const cudaError_t status =
        kind == MemoryKind::kDevice ? cudaMalloc(&memory, asked) : cudaHostAlloc(&memory, asked, cudaHostAllocPortable);
    if (status != cudaSuccess) {
      cudaGetLastError();  // an allocation that fails leaves the device usable
      size_t free = 0, total = 0;
      cudaMemGetInfo(&free, &total);
      throw DeviceError(kind == MemoryKind::kDevice
                            ? fmt::format("No device memory for {}: it takes {} MiB and {} of {} MiB are free.", name,
                                          bytes >> 20, free >> 20, total >> 20)
                            : fmt::format("No pinned host memory for {}: it takes {} MiB.", name, bytes >> 20));
    }
    data_ = static_cast<std::byte*>(memory);
    if (kind == MemoryKind::kDevice) {
      check(cudaMemset(data_, 0, asked), "clearing memory");
      check(cudaDeviceSynchronize(), "clearing memory");
    } else {
      std::fill_n(data_, asked, std::byte{0});
    }
  }
  ~CudaBuffer() override {
    if (kind_ == MemoryKind::kDevice) {
      cudaFree(data_);
    } else {
      cudaFreeHost(data_);
    }
  }
  CudaBuffer(const CudaBuffer&) = delete;
  CudaBuffer& operator=(const CudaBuffer&) = delete;

 private:
  MemoryKind kind_;
};

class CudaGraph final : public Graph {
 public:
  explicit CudaGraph(cudaGraph_t recorded) {
    const cudaError_t status = cudaGraphInstantiate(&runnable_, recorded, 0);
    cudaGraphDestroy(recorded);
    check(status, "a graph's start");
  }
  ~CudaGraph() override { cudaGraphExecDestroy(runnable_); }
  CudaGraph(const CudaGraph&) = delete;
  CudaGraph& operator=(const CudaGraph&) = delete;
  cudaGraphExec_t get() const { return runnable_; }

 private:
  cudaGraphExec_t runnable_ = nullptr;
};

}  // namespace

void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  throw DeviceError(
      fmt::format("CUDA failed in {}: {} ({})", what, cudaGetErrorString(status), cudaGetErrorName(status)));
}

CudaQueue::CudaQueue(QueuePriority priority, size_t scratch_bytes) : scratch_bytes_(scratch_bytes) {
  int low = 0, high = 0;
  check(cudaDeviceGetStreamPriorityRange(&low, &high), "a stream");
  check(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, priority == QueuePriority::kLow ? low : high),
        "a stream");
  void* memory = nullptr;
  const size_t counter_bytes = kNumCounters * sizeof(int32_t);
  check(cudaMalloc(&memory, scratch_bytes_ + counter_bytes), "a stream's scratch memory");
  memory_ = static_cast<std::byte*>(memory);
  check(cudaMemset(memory_ + scratch_bytes_, 0, counter_bytes), "a stream's scratch memory");
  check(cudaDeviceSynchronize(), "a stream's scratch memory");
}

CudaQueue::~CudaQueue() {
  cudaStreamSynchronize(stream_);
  cudaStreamDestroy(stream_);
  cudaFree(memory_);
}

void CudaQueue::synchronize() {
  check(cudaStreamSynchronize(stream_), "work on the device");
#ifdef ZIPAGE_DEBUG_CHECKS
  std::vector<int32_t> counters(kNumCounters);
  check(
      cudaMemcpy(counters.data(), memory_ + scratch_bytes_, counters.size() * sizeof(int32_t), cudaMemcpyDeviceToHost),
      "reading the counters");
  const auto used = std::ranges::find_if(counters, [](int32_t count) { return count != 0; });
  ZIPAGE_CHECK(used == counters.end(), "an op left counter {} at {}", used - counters.begin(), *used);
#endif
}

CudaBackend::CudaBackend(int device) : device_(device) {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess || count == 0) {
    cudaGetLastError();
    throw DeviceError(
        fmt::format("No CUDA device: {}.", status == cudaSuccess ? "none is there" : cudaGetErrorString(status)));
  }
  if (device < 0 || device >= count)
    throw DeviceError(fmt::format("CUDA device {} of {} does not exist.", device, count));
  check(cudaSetDevice(device), "choosing the device");
  check(cudaGetDeviceProperties(&properties_, device), "choosing the device");
  if (properties_.major < 8) {
    throw DeviceError(fmt::format("{} has compute capability {}.{}; 8.0 or newer is needed.", properties_.name,
                                  properties_.major, properties_.minor));
  }
  max_shared_bytes_ = static_cast<int>(properties_.sharedMemPerBlockOptin) - kStaticSharedBytes;
}

BackendInfo CudaBackend::info() const {
  size_t free = 0, total = 0;
  check(cudaMemGetInfo(&free, &total), "reading the device's memory");
  return {.name = "cuda",
          .description = fmt::format("{}, sm_{}{}", properties_.name, properties_.major, properties_.minor),
          .activation = DType::kBF16,
          .host_accessible = false,
          .asynchronous = true,
          .memory_bytes = total,
          .free_memory_bytes = free};
}

std::unique_ptr<Buffer> CudaBackend::allocate(size_t bytes, std::string_view name, MemoryKind kind) {
  check(cudaSetDevice(device_), "choosing the device");
  return std::make_unique<CudaBuffer>(bytes, name, kind);
}

std::unique_ptr<Queue> CudaBackend::make_queue(QueuePriority priority) {
  check(cudaSetDevice(device_), "choosing the device");
  return std::make_unique<CudaQueue>(priority, kScratchBytes);
}

std::unique_ptr<Queue> CudaBackend::make_copy_queue() {
  check(cudaSetDevice(device_), "choosing the device");
  return std::make_unique<CudaQueue>(QueuePriority::kNormal, 0);
}

std::unique_ptr<Event> CudaBackend::record(Queue& queue) {
  return std::make_unique<CudaEvent>(static_cast<CudaQueue&>(queue).stream());
}

void CudaBackend::wait(Queue& queue, const Event& event) {
  check(cudaStreamWaitEvent(static_cast<CudaQueue&>(queue).stream(), static_cast<const CudaEvent&>(event).get()),
        "waiting");
}

void CudaBackend::upload(Queue& queue, void* device, const void* host, size_t bytes) {
  check(cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, static_cast<CudaQueue&>(queue).stream()),
        "an upload");
}

void CudaBackend::download(Queue& queue, void* host, const void* device, size_t bytes) {
  check(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, static_cast<CudaQueue&>(queue).stream()),
        "a download");
}

void CudaBackend::upload_rows(Queue& queue, void* device, size_t device_stride, const void* host, size_t host_stride,
                              size_t row_bytes, size_t rows) {
  if (row_bytes == 0 || rows == 0) return;
  check(cudaMemcpy2DAsync(device, device_stride, host, host_stride, row_bytes, rows, cudaMemcpyHostToDevice,
                          static_cast<CudaQueue&>(queue).stream()),
        "an upload");
}

void CudaBackend::noise(Queue& queue, void* device, DType dtype, size_t count, float scale, uint64_t seed) {
  ZIPAGE_CHECK(dtype == DType::kBF16 || dtype == DType::kF8E4M3, "noise of {}", traits(dtype).name);
  if (count == 0) return;
  cuda::noise(launch(queue), device, dtype, count, scale, seed);
  check(cudaGetLastError(), "noise");
}

std::unique_ptr<Graph> CudaBackend::capture(Queue& queue, const std::function<void()>& work) {
  const cudaStream_t stream = static_cast<CudaQueue&>(queue).stream();
  cudaGraph_t recorded = nullptr;
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "the recording of a graph");
  try {
    work();
  } catch (...) {
    // The stream must leave the recording, or nothing else can run on it.
    if (cudaStreamEndCapture(stream, &recorded) == cudaSuccess) cudaGraphDestroy(recorded);
    cudaGetLastError();
    throw;
  }
  check(cudaStreamEndCapture(stream, &recorded), "the recording of a graph");
  return std::make_unique<CudaGraph>(recorded);
}

void CudaBackend::replay(Queue& queue, const Graph& graph) {
  check(cudaGraphLaunch(static_cast<const CudaGraph&>(graph).get(), static_cast<CudaQueue&>(queue).stream()),
        "a graph");
}

void CudaBackend::end_tuning() {
  gemm_.end_tuning();
  staging_.reset();
}

std::unique_ptr<Linear> CudaBackend::make_linear(std::span<const HostTensor> parts) {
  check(cudaSetDevice(device_), "choosing the device");
  if (staging_ == nullptr) staging_ = std::make_unique<WeightStaging>(device_);
  return std::make_unique<CudaLinear>(parts, *staging_);
}

std::unique_ptr<Linear> CudaBackend::make_noise_linear(int64_t out_features, int64_t in_features, uint64_t seed) {
  check(cudaSetDevice(device_), "choosing the device");
  auto linear = std::make_unique<CudaLinear>("made-up weights", out_features, in_features);
  const Launch plain{.num_sms = properties_.multiProcessorCount};  // the default stream
  cuda::noise(plain, linear->data(), DType::kBF16, static_cast<size_t>(out_features * in_features),
              1.0F / std::sqrt(static_cast<float>(in_features)), seed);
  check(cudaDeviceSynchronize(), "noise");
  return linear;
}

size_t CudaBackend::kv_bytes_per_block(const KvGeometry& g) const {
  const size_t element = g.dtype == DType::kF8E4M3 ? 1 : 2;
  return size_t{2} * g.num_kv_heads * g.block_size * g.head_dim * element;
}

size_t CudaBackend::swap_bytes_per_block(const KvGeometry& g) const {
  const size_t slots = static_cast<size_t>(g.num_kv_heads) * g.block_size;
  return g.num_layers * (kv_bytes_per_block(g) + slots * (sizeof(float) + sizeof(int32_t)));
}

Launch CudaBackend::launch(Queue& queue) const {
  const auto& q = static_cast<CudaQueue&>(queue);
  return {.stream = q.stream(),
          .scratch = q.scratch(),
          .scratch_bytes = q.scratch_bytes(),
          .counters = q.counters(),
          .num_sms = properties_.multiProcessorCount,
          .max_shared_bytes = max_shared_bytes_,
          .compute_capability = properties_.major * 10 + properties_.minor};
}

}  // namespace cuda

std::unique_ptr<Backend> make_cuda_backend() {
  return std::make_unique<cuda::CudaBackend>(0);
}

}  // namespace zipage
