#include "ops/device.h"

#include <limits>

#include "base/check.h"
#include "ops/cpu/cpu_backend.h"
#include "tensor/bf16.h"

namespace zipage::test {
namespace {

constexpr float kSentinel = 12345.0F;  // 12352 in bf16; compared after rounding
constexpr cpu::Isa kIsas[] = {cpu::Isa::kPortable, cpu::Isa::kAvx2, cpu::Isa::kAvx512};

std::string cpu_name(cpu::Isa isa) {
  return "cpu_" + std::string(cpu::name(isa));
}

std::unique_ptr<Backend> make(const std::string& name) {
  for (cpu::Isa isa : kIsas) {
    if (name == cpu_name(isa)) return std::make_unique<cpu::CpuBackend>(CpuOptions{.num_threads = 2}, isa);
  }
  return make_backend(name, CpuOptions{});
}

std::vector<std::byte> encode(DType dtype, const std::vector<float>& values) {
  std::vector<std::byte> bytes;
  if (dtype == DType::kF32) {
    bytes.resize(values.size() * sizeof(float));
    std::memcpy(bytes.data(), values.data(), bytes.size());
  } else {
    bytes.resize(values.size() * sizeof(Bf16));
    auto* out = reinterpret_cast<Bf16*>(bytes.data());
    for (size_t i = 0; i < values.size(); ++i) out[i] = Bf16(values[i]);
  }
  return bytes;
}

}  // namespace

std::vector<std::string> device_names() {
  std::vector<std::string> names;
  for (cpu::Isa isa : kIsas) {
    if (cpu::supported(isa)) names.push_back(cpu_name(isa));
  }
  try {
    make_backend("cuda", CpuOptions{});
    names.emplace_back("cuda");
  } catch (const DeviceError&) {
    // Not built in or no such device here.
  }
  return names;
}

Device::Device(const std::string& name) : backend_(make(name)), queue_(backend_->make_queue(QueuePriority::kNormal)) {}

void Device::upload(void* device, const void* host, size_t bytes) {
  if (bytes == 0) return;
  auto pinned = backend_->allocate(bytes, "staging", MemoryKind::kPinnedHost);
  std::memcpy(pinned->data(), host, bytes);
  backend_->upload(*queue_, device, pinned->data(), bytes);
  queue_->synchronize();
}

void Device::download(void* host, const void* device, size_t bytes) {
  if (bytes == 0) return;
  auto pinned = backend_->allocate(bytes, "staging", MemoryKind::kPinnedHost);
  backend_->download(*queue_, pinned->data(), device, bytes);
  queue_->synchronize();
  std::memcpy(host, pinned->data(), bytes);
}

std::vector<float> Device::stored(std::vector<float> values) const {
  if (!f32()) {
    for (float& value : values) value = static_cast<float>(Bf16(value));
  }
  return values;
}

std::unique_ptr<Linear> Device::linear(std::vector<float>& weights, int64_t out_features, int64_t in_features) {
  ZIPAGE_CHECK(static_cast<int64_t>(weights.size()) == out_features * in_features, "{} weights", weights.size());
  for (float& weight : weights) weight = static_cast<float>(Bf16(weight));
  const std::vector<std::byte> bytes = encode(DType::kBF16, weights);
  const HostTensor tensor{.name = "weight", .dtype = DType::kBF16, .shape = {out_features, in_features}, .data = bytes};
  return backend_->make_linear({&tensor, 1});
}

ActMatrix::ActMatrix(Device& device, const std::vector<float>& values, int64_t rows, int64_t cols, int64_t stride)
    : device_(&device), matrix_{.dtype = device.info().activation, .rows = rows, .cols = cols, .stride = stride} {
  std::vector<float> spaced(static_cast<size_t>(rows * stride), kSentinel);
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t col = 0; col < cols; ++col) {
      spaced[static_cast<size_t>(row * stride + col)] =
          values.empty() ? std::numeric_limits<float>::quiet_NaN() : values[static_cast<size_t>(row * cols + col)];
    }
  }
  const std::vector<std::byte> bytes = encode(matrix_.dtype, spaced);
  buffer_ = device.allocate(bytes.size());
  device.upload(buffer_->data(), bytes.data(), bytes.size());
  matrix_.data = buffer_->data();
}

std::vector<float> ActMatrix::everything() const {
  const auto count = static_cast<size_t>(matrix_.rows * matrix_.stride);
  std::vector<float> out(count);
  if (matrix_.dtype == DType::kF32) {
    device_->download(out.data(), buffer_->data(), count * sizeof(float));
  } else {
    std::vector<Bf16> narrow(count);
    device_->download(narrow.data(), buffer_->data(), count * sizeof(Bf16));
    for (size_t i = 0; i < count; ++i) out[i] = static_cast<float>(narrow[i]);
  }
  return out;
}

std::vector<float> ActMatrix::values() const {
  const std::vector<float> all = everything();
  std::vector<float> out;
  for (int64_t row = 0; row < matrix_.rows; ++row) {
    out.insert(out.end(), all.begin() + row * matrix_.stride, all.begin() + row * matrix_.stride + matrix_.cols);
  }
  return out;
}

bool ActMatrix::gap_untouched() const {
  const float sentinel = device_->stored({kSentinel})[0];
  const std::vector<float> all = everything();
  for (int64_t row = 0; row < matrix_.rows; ++row) {
    for (int64_t col = matrix_.cols; col < matrix_.stride; ++col) {
      if (all[static_cast<size_t>(row * matrix_.stride + col)] != sentinel) return false;
    }
  }
  return true;
}

}  // namespace zipage::test
