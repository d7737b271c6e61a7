#include "ops/cpu/cpu_backend.h"

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "ops/cpu/kv_layout.h"
#include "ops/cpu/memory.h"
#include "ops/noise.h"
#include "tensor/bf16.h"

namespace zipage {
namespace cpu {
namespace {

class DoneEvent final : public Event {
 public:
  bool done() const override { return true; }
  void wait() const override {}
  double seconds_since(const Event& earlier) const override {
    return std::chrono::duration<double>(at_ - static_cast<const DoneEvent&>(earlier).at_).count();
  }

 private:
  std::chrono::steady_clock::time_point at_ = std::chrono::steady_clock::now();
};

size_t memory_of(int name) {
  const long pages = sysconf(name);
  const long page = sysconf(_SC_PAGESIZE);
  return pages > 0 && page > 0 ? static_cast<size_t>(pages) * static_cast<size_t>(page) : 0;
}

}  // namespace

CpuBackend::CpuBackend(const CpuOptions& options, std::optional<Isa> isa)
    : isa_(isa.value_or(best_isa())), pool_(options.num_threads) {
  ZIPAGE_CHECK(supported(isa_), "this processor has no {}", name(isa_));
}

BackendInfo CpuBackend::info() const {
  return {.name = "cpu",
          .description = fmt::format("{} threads, {}", pool_.num_threads(), name(isa_)),
          .activation = DType::kF32,
          .host_accessible = true,
          .asynchronous = false,
          .memory_bytes = memory_of(_SC_PHYS_PAGES),
          .free_memory_bytes = memory_of(_SC_AVPHYS_PAGES)};
}

std::unique_ptr<Buffer> CpuBackend::allocate(size_t bytes, std::string_view name, MemoryKind) {
  return std::make_unique<CpuBuffer>(bytes, name);
}

std::unique_ptr<Queue> CpuBackend::make_queue(QueuePriority priority) {
  return std::make_unique<CpuQueue>(priority == QueuePriority::kNormal ? &pool_ : nullptr);
}

std::unique_ptr<Queue> CpuBackend::make_copy_queue() {
  return std::make_unique<CpuQueue>(nullptr);
}

std::unique_ptr<Event> CpuBackend::record(Queue&) {
  return std::make_unique<DoneEvent>();
}

void CpuBackend::wait(Queue&, const Event&) {}

void CpuBackend::upload(Queue&, void* device, const void* host, size_t bytes) {
  if (bytes > 0) std::memcpy(device, host, bytes);
}

void CpuBackend::download(Queue&, void* host, const void* device, size_t bytes) {
  if (bytes > 0) std::memcpy(host, device, bytes);
}

void CpuBackend::upload_rows(Queue&, void* device, size_t device_stride, const void* host, size_t host_stride,
                             size_t row_bytes, size_t rows) {
  for (size_t row = 0; row < rows; ++row) {
    std::memcpy(static_cast<std::byte*>(device) + row * device_stride,
                static_cast<const std::byte*>(host) + row * host_stride, row_bytes);
  }
}

void CpuBackend::noise(Queue& queue, void* device, DType dtype, size_t count, float scale, uint64_t seed) {
  ZIPAGE_CHECK(dtype == DType::kBF16, "noise of {}", traits(dtype).name);
  constexpr int64_t kValuesPerTask = 65536;
  executor(queue).parallel_for(static_cast<int64_t>(count), kValuesPerTask, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      static_cast<Bf16*>(device)[i] = Bf16(scale * noise_value(seed, static_cast<uint64_t>(i)));
    }
  });
}

void CpuBackend::replay(Queue&, const Graph&) {
  ZIPAGE_CHECK(false, "the CPU has no graphs");
}

std::unique_ptr<Linear> CpuBackend::make_noise_linear(int64_t out_features, int64_t in_features, uint64_t seed) {
  const auto count = static_cast<size_t>(out_features * in_features);
  std::vector<Bf16> values(count);
  CpuQueue queue(&pool_);
  noise(queue, values.data(), DType::kBF16, count, 1.0F / std::sqrt(static_cast<float>(in_features)), seed);
  const HostTensor tensor{.name = "noise",
                          .dtype = DType::kBF16,
                          .shape = {out_features, in_features},
                          .data = std::as_bytes(std::span(values))};
  return make_linear({&tensor, 1});
}

size_t CpuBackend::kv_bytes_per_block(const KvGeometry& geometry) const {
  if (geometry.dtype != DType::kBF16) {
    throw DeviceError(fmt::format("The CPU keeps KV in bf16 only, not in {}.", traits(geometry.dtype).name));
  }
  return kv_block_bytes(geometry);
}

size_t CpuBackend::swap_bytes_per_block(const KvGeometry& geometry) const {
  const size_t slots = static_cast<size_t>(geometry.num_kv_heads) * static_cast<size_t>(geometry.block_size);
  return static_cast<size_t>(geometry.num_layers) *
         (kv_bytes_per_block(geometry) + slots * (sizeof(float) + sizeof(int32_t)));
}

}  // namespace cpu

std::unique_ptr<Backend> make_cpu_backend(const CpuOptions& options) {
  return std::make_unique<cpu::CpuBackend>(options);
}

}  // namespace zipage
