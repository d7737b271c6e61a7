#include "table.h"

#include <fmt/format.h>

#include <algorithm>

namespace zipage::apps {

std::string markdown_table(const std::vector<std::vector<std::string>>& rows, size_t first_number) {
  const size_t columns = rows.front().size();
  std::vector<size_t> widths(columns, 3);
  for (const auto& row : rows) {
    for (size_t c = 0; c < columns; ++c) widths[c] = std::max(widths[c], row[c].size());
  }
  std::string text;
  for (size_t r = 0; r < rows.size(); ++r) {
    for (size_t c = 0; c < columns; ++c) {
      text += c < first_number ? fmt::format("| {:<{}} ", rows[r][c], widths[c])
                               : fmt::format("| {:>{}} ", rows[r][c], widths[c]);
    }
    text += "|\n";
    if (r > 0) continue;
    for (size_t c = 0; c < columns; ++c) {
      text += fmt::format("| {}{} ", std::string(widths[c] - 1, '-'), c < first_number ? '-' : ':');
    }
    text += "|\n";
  }
  return text;
}

}  // namespace zipage::apps
