#include "load/mapped_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <functional>

#include "base/check.h"

namespace zipage {
namespace {

Status system_error(const std::string& path, const char* action, int error) {
  const StatusCode code = error == ENOENT || error == ENOTDIR ? StatusCode::kNotFound : StatusCode::kInternal;
  return {code, fmt::format("{}: cannot {}: {}", path, action, std::strerror(error))};
}

}  // namespace

Result<std::shared_ptr<const MappedFile>> MappedFile::open(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return system_error(path, "open", errno);
  struct stat info = {};
  if (::fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
    ::close(fd);
    return Status(StatusCode::kInvalidArgument, fmt::format("{}: not a regular file", path));
  }
  const size_t size = static_cast<size_t>(info.st_size);
  void* data = nullptr;
  if (size > 0) {
    data = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (data == MAP_FAILED) {
      const int error = errno;
      ::close(fd);
      return system_error(path, "map", error);
    }
  }
  ::close(fd);
  return std::shared_ptr<const MappedFile>(new MappedFile(path, static_cast<std::byte*>(data), size));
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(data_, size_);
}

bool MappedFile::owns(std::span<const std::byte> part) const {
  // std::less orders pointers of different objects too.
  const std::less<const std::byte*> before;
  return data_ != nullptr && !before(part.data(), data_) && part.data() - data_ <= static_cast<ptrdiff_t>(size_) &&
         part.size() <= size_ - static_cast<size_t>(part.data() - data_);
}

void MappedFile::release(std::span<const std::byte> part) const {
  ZIPAGE_CHECK(owns(part), "{}: {} bytes to release are not from this file", path_, part.size());
  static const uintptr_t page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const uintptr_t begin = (reinterpret_cast<uintptr_t>(part.data()) + page - 1) / page * page;
  const uintptr_t end = (reinterpret_cast<uintptr_t>(part.data()) + part.size()) / page * page;
  if (begin < end) ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

}  // namespace zipage
