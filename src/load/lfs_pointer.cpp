#include "load/lfs_pointer.h"

#include <fmt/format.h>

namespace zipage {

bool is_lfs_pointer(std::string_view content) {
  return content.starts_with("version https://git-lfs.github.com/");
}

std::string lfs_pointer_message(const std::string& path, std::string_view content) {
  std::string expected = "the real file";
  constexpr std::string_view kSize = "\nsize ";
  if (const size_t at = content.find(kSize); at != std::string_view::npos) {
    std::string_view digits = content.substr(at + kSize.size());
    digits = digits.substr(0, digits.find_first_not_of("0123456789"));
    if (!digits.empty() && digits.size() < 20) expected = fmt::format("the real file of {} bytes", digits);
  }
  return fmt::format("{}: this is a Git LFS pointer of {} bytes, not {}; run `git lfs pull` or download it again", path,
                     content.size(), expected);
}

}  // namespace zipage
