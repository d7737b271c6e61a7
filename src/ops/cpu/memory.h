// Zero-filled memory of the CPU backend, in huge pages where it is large.
//
// Thread-safety: a buffer is owned by one place; an arena may be used by any thread.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>

#include "ops/ops.h"

namespace zipage::cpu {

class CpuBuffer final : public Buffer {
 public:
  // Throws DeviceError naming `name` when the memory is not to be had. Pages are taken when first written.
  CpuBuffer(size_t bytes, std::string_view name);
  ~CpuBuffer() override;
  CpuBuffer(const CpuBuffer&) = delete;
  CpuBuffer& operator=(const CpuBuffer&) = delete;

 private:
  void* mapping_ = nullptr;
  size_t mapped_ = 0;
};

// Memory for many pieces that live about equally long, side by side in large buffers: a layer's weights alone are too
// small for huge pages, and streaming them from small ones is three times slower.
class Arena {
 public:
  struct Piece {
    std::shared_ptr<const CpuBuffer> owner;
    std::byte* data = nullptr;  // zero-filled, 64-byte aligned
  };
  Piece take(size_t bytes, std::string_view name);

 private:
  std::mutex mutex_;
  std::shared_ptr<const CpuBuffer> current_;
  size_t used_ = 0;
};

}  // namespace zipage::cpu
