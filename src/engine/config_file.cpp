#include "engine/config_file.h"

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <fstream>
#include <iterator>

namespace zipage {
namespace {

Status fault(std::string_view origin, const YAML::Mark& mark, std::string_view what) {
  const std::string place = mark.is_null() ? std::string(origin) : fmt::format("{}:{}", origin, mark.line + 1);
  return invalid_argument(fmt::format("{}: {}", place, what)).with_param(std::string(origin));
}

Result<std::string> plain_value(const YAML::Node& node, std::string_view origin, std::string_view key) {
  if (node.IsScalar()) return node.Scalar();
  if (!node.IsSequence()) {
    return fault(origin, node.Mark(), fmt::format("'{}' must be a plain value or a list of them", key));
  }
  std::string joined;
  for (const YAML::Node& item : node) {
    if (!item.IsScalar()) return fault(origin, item.Mark(), fmt::format("the list '{}' must hold plain values", key));
    if (!joined.empty()) joined += ',';
    joined += item.Scalar();
  }
  return joined;
}

Result<std::vector<Setting>> settings_of(const YAML::Node& root, std::string_view origin) {
  std::vector<Setting> settings;
  if (root.IsNull()) return settings;
  if (!root.IsMap()) return fault(origin, root.Mark(), "must be a map of keys and values");
  for (const auto& pair : root) {
    if (!pair.first.IsScalar()) return fault(origin, pair.first.Mark(), "a key must be a word");
    const std::string& key = pair.first.Scalar();
    const bool twice = std::any_of(settings.begin(), settings.end(), [&](const Setting& s) { return s.key == key; });
    if (twice) return fault(origin, pair.first.Mark(), fmt::format("'{}' comes twice", key));
    if (pair.second.IsNull()) continue;
    ZIPAGE_ASSIGN_OR_RETURN(std::string value, plain_value(pair.second, origin, key));
    settings.push_back({key, std::move(value), pair.first.Mark().line + 1});
  }
  return settings;
}

}  // namespace

Result<std::vector<Setting>> parse_settings(std::string_view yaml, std::string_view origin) {
  try {
    return settings_of(YAML::Load(std::string(yaml)), origin);
  } catch (const YAML::Exception& error) {
    return fault(origin, error.mark, fmt::format("is not YAML: {}", error.msg));
  }
}

Result<std::vector<Setting>> read_settings_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return Status(StatusCode::kNotFound, fmt::format("{}: cannot be read", path)).with_param("config");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  return parse_settings(text, path);
}

}  // namespace zipage
