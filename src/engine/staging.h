// A step's small host arrays, gathered in one pinned buffer and uploaded in one copy.
//
// Thread-safety: one thread. The arrays of a step stay valid until the next reset(); on an asynchronous backend the
// caller keeps one arena per step in flight.
#pragma once

#include <cstring>
#include <memory>
#include <span>

#include "base/check.h"
#include "ops/ops.h"

namespace zipage {

class StagingArena {
 public:
  StagingArena(Backend& backend, size_t bytes, std::string_view name)
      : backend_(backend),
        shared_(backend.info().host_accessible),
        host_(backend.allocate(bytes, name, MemoryKind::kPinnedHost)),
        device_(shared_ ? nullptr : backend.allocate(bytes, name)) {}

  void reset() { used_ = 0; }
  bool fits(size_t bytes) const { return bytes <= host_->bytes(); }

  // Room for `count` elements; returns the host pointer to fill and, in *device, where they will be on the device.
  template <typename T>
  T* reserve(size_t count, const T** device) {
    used_ = (used_ + kAlignment - 1) / kAlignment * kAlignment;
    ZIPAGE_CHECK(used_ + count * sizeof(T) <= host_->bytes(), "staging of {} bytes is full", host_->bytes());
    T* host = reinterpret_cast<T*>(host_->data() + used_);
    *device = shared_ ? host : reinterpret_cast<const T*>(device_->data() + used_);
    used_ += count * sizeof(T);
    return host;
  }

  template <typename T>
  const T* put(std::span<const T> values) {
    const T* device = nullptr;
    T* host = reserve<T>(values.size(), &device);
    if (!values.empty()) std::memcpy(host, values.data(), values.size_bytes());
    return device;
  }

  void upload(Queue& queue) {
    if (!shared_ && used_ > 0) backend_.upload(queue, device_->data(), host_->data(), used_);
  }

 private:
  static constexpr size_t kAlignment = 64;
  Backend& backend_;
  bool shared_;
  std::unique_ptr<Buffer> host_, device_;
  size_t used_ = 0;
};

}  // namespace zipage
