// A step's small host arrays, gathered in one pinned buffer and uploaded in one copy.
//
// The device memory is the same for every step: a queue runs its work in order, so a step's upload waits for the step
// before. The host's copies take turns, so that the next step can be written while this one's upload is on its way.
//
// Thread-safety: one thread. On the host the arrays of a step stay valid until the second reset() after it.
#pragma once

#include <array>
#include <cstring>
#include <memory>
#include <span>

#include "base/check.h"
#include "ops/ops.h"

namespace zipage {

// Rows `stride` bytes apart, of which the first `row_bytes` are filled.
struct StagedRows {
  const void* device = nullptr;
  const void* host = nullptr;
  size_t stride = 0, row_bytes = 0, count = 0;
};

class StagingArena {
 public:
  StagingArena(Backend& backend, size_t bytes, std::string_view name)
      : backend_(backend), shared_(backend.info().host_accessible) {
    for (Turn& turn : turns_) {
      turn.host = backend.allocate(bytes, name, MemoryKind::kPinnedHost);
      if (shared_) break;  // what the device reads is done with when a call returns
    }
    if (!shared_) device_ = backend.allocate(bytes, name);
  }

  // Begins a step. Waits while the upload before the last one is not done.
  void reset() {
    used_ = 0;
    if (!shared_) now_ = (now_ + 1) % turns_.size();
    if (turns_[now_].uploaded) turns_[now_].uploaded->wait();
  }
  bool fits(size_t bytes) const { return bytes <= host().bytes(); }

  // Room for `count` elements; returns the host pointer to fill and, in *device, where they will be on the device.
  template <typename T>
  T* reserve(size_t count, const T** device) {
    used_ = (used_ + kAlignment - 1) / kAlignment * kAlignment;
    ZIPAGE_CHECK(fits(used_ + count * sizeof(T)), "staging of {} bytes is full", host().bytes());
    T* to = reinterpret_cast<T*>(host().data() + used_);
    *device = shared_ ? to : reinterpret_cast<const T*>(device_->data() + used_);
    used_ += count * sizeof(T);
    return to;
  }

  template <typename T>
  const T* put(std::span<const T> values) {
    const T* device = nullptr;
    T* to = reserve<T>(values.size(), &device);
    if (!values.empty()) std::memcpy(to, values.data(), values.size_bytes());
    return device;
  }

  // Everything that was put; of `tables`, which come last, only what is filled.
  void upload(Queue& queue, const StagedRows& tables = {}) {
    if (shared_) return;
    const size_t bytes = tables.host == nullptr
                             ? used_
                             : static_cast<size_t>(static_cast<const std::byte*>(tables.host) - host().data());
    if (bytes > 0) backend_.upload(queue, device_->data(), host().data(), bytes);
    if (tables.count > 0) {
      backend_.upload_rows(queue, const_cast<void*>(tables.device), tables.stride, tables.host, tables.stride,
                           tables.row_bytes, tables.count);
    }
    turns_[now_].uploaded = backend_.record(queue);
  }

 private:
  static constexpr size_t kAlignment = 64;
  struct Turn {
    std::unique_ptr<Buffer> host;
    std::unique_ptr<Event> uploaded;
  };
  Buffer& host() const { return *turns_[now_].host; }

  Backend& backend_;
  bool shared_;
  std::array<Turn, 2> turns_;
  size_t now_ = 0;
  std::unique_ptr<Buffer> device_;
  size_t used_ = 0;
};

}  // namespace zipage
