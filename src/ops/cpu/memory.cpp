#include "ops/cpu/memory.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace zipage::cpu {

CpuBuffer::CpuBuffer(size_t bytes, std::string_view name) {
  constexpr size_t kHugePage = size_t{2} << 20;
  // Packed tables may be read a vector past their end.
  mapped_ = std::max<size_t>(bytes, 1) + 64;
  if (mapped_ >= kHugePage) mapped_ = (mapped_ + kHugePage - 1) / kHugePage * kHugePage;
  void* memory = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    throw DeviceError(fmt::format("Cannot allocate {} bytes for {}: {}.", bytes, name, std::strerror(errno)));
  }
  if (mapped_ >= kHugePage) madvise(memory, mapped_, MADV_HUGEPAGE);
  data_ = static_cast<std::byte*>(memory);
  bytes_ = bytes;
}

CpuBuffer::~CpuBuffer() {
  munmap(data_, mapped_);
}

}  // namespace zipage::cpu
