#include "ops/cpu/cpu_backend.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstring>

#include "base/check.h"
#include "ops/cpu/kv_layout.h"
#include "ops/cpu/memory.h"

namespace zipage {
namespace cpu {
namespace {

class DoneEvent final : public Event {
 public:
  bool done() const override { return true; }
  void wait() const override {}
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
