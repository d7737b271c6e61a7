#include "model/config_reader.h"

#include <fmt/format.h>

#include <cmath>

namespace zipage {
namespace {

// A value as the file spells it, short enough for a sentence.
std::string shown(const nlohmann::json& value) {
  std::string text = value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  if (text.size() > 80) text = text.substr(0, 77) + "...";
  return text;
}

std::optional<double> number_in(const nlohmann::json& value, double min, double max) {
  if (!value.is_number()) return std::nullopt;
  const double number = value.get<double>();
  if (!std::isfinite(number) || number < min || number > max) return std::nullopt;
  return number;
}

}  // namespace

const nlohmann::json* ConfigReader::find(std::string_view key) const {
  const auto at = object_.find(key);
  return at == object_.end() || at->is_null() ? nullptr : &*at;
}

std::optional<int64_t> ConfigReader::integer(std::string_view key, int64_t min, int64_t max) {
  const nlohmann::json* value = find(key);
  if (value == nullptr) return std::nullopt;
  const bool fits = value->is_number_integer() &&
                    !(value->is_number_unsigned() && value->get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) &&
                    value->get<int64_t>() >= min && value->get<int64_t>() <= max;
  if (!fits) {
    invalid(key, fmt::format("is {}, expected an integer from {} to {}", shown(*value), min, max));
    return std::nullopt;
  }
  return value->get<int64_t>();
}

int ConfigReader::required_int(std::string_view key, int min, int max) {
  if (!has(key)) invalid(key, "is missing");
  return static_cast<int>(integer(key, min, max).value_or(min));
}

std::optional<double> ConfigReader::number(std::string_view key, double min, double max) {
  const nlohmann::json* value = find(key);
  if (value == nullptr) return std::nullopt;
  const std::optional<double> number = number_in(*value, min, max);
  if (!number) invalid(key, fmt::format("is {}, expected a number from {:g} to {:g}", shown(*value), min, max));
  return number;
}

std::optional<bool> ConfigReader::boolean(std::string_view key) {
  const nlohmann::json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_boolean()) {
    invalid(key, fmt::format("is {}, expected true or false", shown(*value)));
    return std::nullopt;
  }
  return value->get<bool>();
}

std::optional<std::string> ConfigReader::string(std::string_view key) {
  const nlohmann::json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) {
    invalid(key, fmt::format("is {}, expected a string", shown(*value)));
    return std::nullopt;
  }
  return value->get<std::string>();
}

std::optional<std::vector<double>> ConfigReader::numbers(std::string_view key, double min, double max) {
  const nlohmann::json* value = find(key);
  if (value == nullptr) return std::nullopt;
  std::vector<double> list;
  if (value->is_array()) {
    for (const nlohmann::json& element : *value) {
      const std::optional<double> number = number_in(element, min, max);
      if (!number) break;
      list.push_back(*number);
    }
  }
  if (!value->is_array() || list.size() != value->size()) {
    invalid(key, fmt::format("is {}, expected a list of numbers from {:g} to {:g}", shown(*value), min, max));
    return std::nullopt;
  }
  return list;
}

void ConfigReader::invalid(std::string_view key, const std::string& reason) {
  keep(StatusCode::kInvalidArgument, key, reason);
}

void ConfigReader::unsupported(std::string_view key, const std::string& reason) {
  keep(StatusCode::kUnimplemented, key, reason);
}

void ConfigReader::keep(StatusCode code, std::string_view key, const std::string& reason) {
  if (status_.ok()) status_ = Status(code, fmt::format("{}: {}{} {}", origin_, prefix_, key, reason));
}

}  // namespace zipage
