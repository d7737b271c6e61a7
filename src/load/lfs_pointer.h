// Git LFS leaves small text files ("pointers") where large ones belong until they are fetched.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace zipage {

bool is_lfs_pointer(std::string_view content);
inline bool is_lfs_pointer(std::span<const std::byte> content) {
  return is_lfs_pointer(std::string_view(reinterpret_cast<const char*>(content.data()), content.size()));
}
// The sentence for a pointer found at `path`, with the size of the file that is missing.
std::string lfs_pointer_message(const std::string& path, std::string_view content);
inline std::string lfs_pointer_message(const std::string& path, std::span<const std::byte> content) {
  return lfs_pointer_message(path, std::string_view(reinterpret_cast<const char*>(content.data()), content.size()));
}

}  // namespace zipage
