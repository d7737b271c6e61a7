// The devices that the op tests run on, and typed memory on them.
//
// Every available backend is tested by the same code; on the CPU each instruction set counts as one.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "ops/ops.h"

namespace zipage::test {

// "cpu_portable", "cpu_avx2", "cpu_avx512" where the processor has them, "cuda" where one is built in and present.
std::vector<std::string> device_names();
inline std::string device_of(const ::testing::TestParamInfo<std::string>& info) {
  return info.param;
}

class Device;

// `count` elements of T in device memory.
template <typename T>
class DeviceArray {
 public:
  DeviceArray(Device& device, const std::vector<T>& values);

  T* data() const { return buffer_->as<T>(); }
  size_t size() const { return size_; }
  std::vector<T> values() const;
  void assign(const std::vector<T>& values);

 private:
  Device* device_;
  size_t size_;
  std::unique_ptr<Buffer> buffer_;
};

// A matrix of activations whose rows lie `stride` elements apart; what lies between rows is a sentinel, checked by
// gap_untouched().
class ActMatrix {
 public:
  // `values` [rows, cols]; stride >= cols.
  ActMatrix(Device& device, const std::vector<float>& values, int64_t rows, int64_t cols, int64_t stride);

  Matrix matrix() const { return matrix_; }
  std::vector<float> values() const;  // [rows, cols]
  bool gap_untouched() const;

 private:
  std::vector<float> everything() const;

  Device* device_;
  Matrix matrix_;
  std::unique_ptr<Buffer> buffer_;
};

class Device {
 public:
  explicit Device(const std::string& name);

  Backend& backend() { return *backend_; }
  Queue& queue() { return *queue_; }
  BackendInfo info() const { return backend_->info(); }
  bool f32() const { return info().activation == DType::kF32; }
  // What a backend serves: activation rows and their strides are multiples of so many elements, heads have some sizes.
  int64_t granularity() const { return f32() ? 1 : 8; }
  int width(int64_t at_least) const {
    return static_cast<int>((at_least + granularity() - 1) / granularity() * granularity());
  }
  bool serves_head_dim(int d) const { return f32() || d == 64 || d == 96 || d == 128 || d == 256; }

  void upload(void* device, const void* host, size_t bytes);
  void download(void* host, const void* device, size_t bytes);
  std::unique_ptr<Buffer> allocate(size_t bytes) { return backend_->allocate(bytes, "test"); }

  template <typename T>
  DeviceArray<T> array(const std::vector<T>& values) {
    return DeviceArray<T>(*this, values);
  }
  // What an activation becomes when it is stored: itself, or rounded to bf16.
  std::vector<float> stored(std::vector<float> values) const;
  ActMatrix act(const std::vector<float>& values, int64_t rows, int64_t cols, int64_t gap = 0) {
    return ActMatrix(*this, values, rows, cols, cols + width(gap));
  }
  // Weights from values that are rounded to bf16 first (in place), so that the oracle sees the same numbers.
  std::unique_ptr<Linear> linear(std::vector<float>& weights, int64_t out_features, int64_t in_features);

 private:
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Queue> queue_;
};

// One test body for all devices: TEST_P(OpTest, ...) with `device`.
class OpTest : public ::testing::TestWithParam<std::string> {
 protected:
  Device device{GetParam()};
};

template <typename T>
DeviceArray<T>::DeviceArray(Device& device, const std::vector<T>& values)
    : device_(&device), size_(values.size()), buffer_(device.allocate(values.size() * sizeof(T))) {
  assign(values);
}

template <typename T>
void DeviceArray<T>::assign(const std::vector<T>& values) {
  device_->upload(buffer_->data(), values.data(), values.size() * sizeof(T));
}

template <typename T>
std::vector<T> DeviceArray<T>::values() const {
  std::vector<T> out(size_);
  device_->download(out.data(), buffer_->data(), size_ * sizeof(T));
  return out;
}

}  // namespace zipage::test
