// A file mapped read-only into memory.
//
// Thread-safety: immutable. The bytes stay valid as long as the object; a file that someone shortens meanwhile raises
// SIGBUS on access, as with every mapping.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "zipage/status.h"

namespace zipage {

class MappedFile {
 public:
  // kNotFound or kInternal with the system's reason. An empty file maps to an empty span.
  static Result<std::shared_ptr<const MappedFile>> open(const std::string& path);
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  const std::string& path() const { return path_; }
  std::span<const std::byte> bytes() const { return {data_, size_}; }
  bool owns(std::span<const std::byte> part) const;
  // Drops the whole pages inside `part` from this process; they are read again when touched. REQUIRES: owns(part)
  void release(std::span<const std::byte> part) const;

 private:
  MappedFile(std::string path, std::byte* data, size_t size) : path_(std::move(path)), data_(data), size_(size) {}

  std::string path_;
  std::byte* data_;
  size_t size_;
};

}  // namespace zipage
