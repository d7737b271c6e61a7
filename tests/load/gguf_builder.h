// GGUF files for tests, piece by piece, so that each piece can be wrong.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "load/test_files.h"

namespace zipage {

class GgufBuilder {
 public:
  enum Type : uint32_t {
    kU8,
    kI8,
    kU16,
    kI16,
    kU32,
    kI32,
    kF32,
    kBool,
    kString,
    kArray,
    kU64,
    kI64,
    kF64,
  };

  static std::string text(std::string_view value) {
    std::string bytes;
    append<uint64_t>(bytes, value.size());
    return bytes + std::string(value);
  }
  template <typename T>
  static std::string raw(T value) {
    std::string bytes;
    append(bytes, value);
    return bytes;
  }

  // A pair whose value is given as the bytes that follow the type.
  GgufBuilder& pair(std::string_view key, uint32_t type, const std::string& value) {
    pairs_ += text(key) + raw(type) + value;
    ++num_pairs;
    return *this;
  }
  GgufBuilder& string(std::string_view key, std::string_view value) { return pair(key, kString, text(value)); }
  GgufBuilder& u32(std::string_view key, uint32_t value) { return pair(key, kU32, raw(value)); }
  GgufBuilder& f32(std::string_view key, float value) { return pair(key, kF32, raw(value)); }
  GgufBuilder& array(std::string_view key, uint32_t type, uint64_t count, const std::string& elements) {
    return pair(key, kArray, raw(type) + raw(count) + elements);
  }

  // `dims` are ggml's: the contiguous one first.
  GgufBuilder& tensor(std::string_view name, const std::vector<uint64_t>& dims, uint32_t type,
                      const std::string& data) {
    std::string& bytes = data_;
    bytes.resize((bytes.size() + alignment - 1) / alignment * alignment);
    tensor_entry(name, dims, type, bytes.size());
    bytes += data;
    return *this;
  }
  GgufBuilder& tensor_entry(std::string_view name, const std::vector<uint64_t>& dims, uint32_t type, uint64_t offset) {
    tensors_ += text(name) + raw(static_cast<uint32_t>(dims.size()));
    for (const uint64_t dim : dims) tensors_ += raw(dim);
    tensors_ += raw(type) + raw(offset);
    ++num_tensors;
    return *this;
  }

  std::string build() const {
    std::string bytes = magic + raw(version) + raw(num_tensors) + raw(num_pairs) + pairs_ + tensors_;
    if (alignment > 0) bytes.resize((bytes.size() + alignment - 1) / alignment * alignment);
    return bytes + data_;
  }

  std::string magic = "GGUF";
  uint32_t version = 3;
  uint64_t num_tensors = 0, num_pairs = 0;
  uint64_t alignment = 32;

 private:
  std::string pairs_, tensors_, data_;
};

// Little-endian fp32 numbers.
inline std::string floats(const std::vector<float>& values) {
  std::string bytes;
  for (const float value : values) append(bytes, value);
  return bytes;
}

}  // namespace zipage
