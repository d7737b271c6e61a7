// Zero-filled memory of the CPU backend, in huge pages where it is large.
//
// Thread-safety: none needed; an object is owned by one place.
#pragma once

#include <cstddef>

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
  size_t mapped_ = 0;
};

}  // namespace zipage::cpu
