// Files for the loaders' tests, written by hand into a folder that goes away with the test.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <string_view>

namespace zipage {

class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    std::string pattern = (std::filesystem::temp_directory_path() / "zipage_load_XXXXXX").string();
    path_ = ::mkdtemp(pattern.data());
  }
  ~TemporaryDirectory() { std::filesystem::remove_all(path_); }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;

  const std::string& path() const { return path_; }
  std::string path(std::string_view file) const { return path_ + "/" + std::string(file); }
  // Writes a file, its folders too, and returns its path.
  std::string write(std::string_view file, std::string_view content) const {
    std::filesystem::create_directories(std::filesystem::path(path(file)).parent_path());
    std::ofstream(path(file), std::ios::binary) << content;
    return path(file);
  }

 private:
  std::string path_;
};

template <typename T>
void append(std::string& bytes, T value) {
  char raw[sizeof(T)];
  std::memcpy(raw, &value, sizeof(T));
  bytes.append(raw, sizeof(T));
}

inline std::span<const std::byte> as_span(const std::string& bytes) {
  return std::as_bytes(std::span(bytes));
}

// A safetensors file: length, header, data.
inline std::string safetensors_file(std::string_view header, std::string_view data) {
  std::string bytes;
  append<uint64_t>(bytes, header.size());
  bytes += header;
  bytes += data;
  return bytes;
}

}  // namespace zipage
