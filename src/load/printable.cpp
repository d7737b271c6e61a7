#include "load/printable.h"

#include <fmt/format.h>

namespace zipage {

std::string printable(std::string_view text) {
  constexpr size_t kMaxBytes = 120;
  std::string shown;
  for (const char c : text.substr(0, kMaxBytes)) {
    if (c >= ' ' && c <= '~') {
      shown += c;
    } else {
      shown += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    }
  }
  if (text.size() > kMaxBytes) shown += "...";
  return shown;
}

}  // namespace zipage
