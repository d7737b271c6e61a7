#include "load/shard_name.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

namespace zipage {

std::string ShardName::file(int of_number) const {
  return fmt::format("{}-{:05}-of-{:05}{}", stem, of_number, count, extension);
}

std::optional<ShardName> parse_shard_name(std::string_view file) {
  constexpr std::string_view kPattern = "-#####-of-#####";
  const size_t dot = file.rfind('.');
  if (dot == std::string_view::npos || dot < kPattern.size()) return std::nullopt;
  const std::string_view tail = file.substr(dot - kPattern.size(), kPattern.size());
  for (size_t i = 0; i < kPattern.size(); ++i) {
    const bool digit = tail[i] >= '0' && tail[i] <= '9';
    if (kPattern[i] == '#' ? !digit : tail[i] != kPattern[i]) return std::nullopt;
  }
  const auto number = [](std::string_view digits) {
    int value = 0;
    for (const char c : digits) value = value * 10 + (c - '0');
    return value;
  };
  ShardName name{.stem = std::string(file.substr(0, dot - kPattern.size())),
                 .number = number(tail.substr(1, 5)),
                 .count = number(tail.substr(10, 5)),
                 .extension = std::string(file.substr(dot))};
  if (name.number < 1 || name.number > name.count) return std::nullopt;
  return name;
}

Result<std::vector<std::string>> complete_shards(const std::string& directory, const ShardName& shard) {
  std::vector<std::string> names, missing;
  for (int i = 1; i <= shard.count; ++i) {
    names.push_back(shard.file(i));
    std::error_code ignored;
    if (!std::filesystem::exists(std::filesystem::path(directory) / names.back(), ignored))
      missing.push_back(names.back());
  }
  if (missing.empty()) return names;
  const size_t shown = std::min<size_t>(missing.size(), 5);
  std::string list =
      fmt::format("{}", fmt::join(missing.begin(), missing.begin() + static_cast<ptrdiff_t>(shown), ", "));
  if (shown < missing.size()) list += fmt::format(" and {} more", missing.size() - shown);
  return Status(StatusCode::kNotFound, fmt::format("{}: {} of the {} shards of {} are missing: {}", directory,
                                                   missing.size(), shard.count, shard.stem, list));
}

}  // namespace zipage
