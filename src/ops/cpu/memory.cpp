#include "ops/cpu/memory.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>

namespace zipage::cpu {

namespace {

constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kArenaBuffer = size_t{64} << 20;  // of address space; memory is taken when written
constexpr size_t kCacheLine = 64;

}  // namespace

CpuBuffer::CpuBuffer(size_t bytes, std::string_view name) {
  const bool huge = bytes >= kHugePage;
  mapped_ = std::max<size_t>(bytes, 1);
  // Room to start on a huge page's boundary.
  if (huge) mapped_ = (mapped_ + kHugePage - 1) / kHugePage * kHugePage + kHugePage;
  void* memory = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    throw DeviceError(fmt::format("Cannot allocate {} bytes for {}: {}.", bytes, name, std::strerror(errno)));
  }
  mapping_ = memory;
  data_ = static_cast<std::byte*>(memory);
  bytes_ = bytes;
  if (huge) {
    data_ += (kHugePage - reinterpret_cast<uintptr_t>(memory) % kHugePage) % kHugePage;
    madvise(data_, mapped_ - kHugePage, MADV_HUGEPAGE);
  }
}

CpuBuffer::~CpuBuffer() {
  munmap(mapping_, mapped_);
}

Arena::Piece Arena::take(size_t bytes, std::string_view name) {
  const std::lock_guard lock(mutex_);
  if (current_ == nullptr || used_ + bytes > current_->bytes()) {
    auto buffer = std::make_shared<const CpuBuffer>(std::max(bytes, kArenaBuffer), name);
    // What has more room left serves the pieces to come.
    if (current_ != nullptr && bytes + (current_->bytes() - used_) >= buffer->bytes()) return {buffer, buffer->data()};
    current_ = std::move(buffer);
    used_ = 0;
  }
  std::byte* data = current_->data() + used_;
  used_ += (bytes + kCacheLine - 1) / kCacheLine * kCacheLine;
  return {current_, data};
}

}  // namespace zipage::cpu
