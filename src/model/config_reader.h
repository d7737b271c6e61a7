// Typed access to the fields of one JSON object. The first problem is kept; later reads return their defaults.
//
// Thread-safety: one thread at a time.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "zipage/status.h"

namespace zipage {

class ConfigReader {
 public:
  // `origin` names the file in messages, `prefix` the place of the object in it ("rope_scaling.").
  ConfigReader(const nlohmann::json& object, std::string origin, std::string prefix = "")
      : object_(object), origin_(std::move(origin)), prefix_(std::move(prefix)) {}

  const Status& status() const { return status_; }
  const std::string& origin() const { return origin_; }

  // The field's value; null when it is missing or null.
  const nlohmann::json* find(std::string_view key) const;
  bool has(std::string_view key) const { return find(key) != nullptr; }

  std::optional<int64_t> integer(std::string_view key, int64_t min, int64_t max);
  int required_int(std::string_view key, int min, int max);
  std::optional<double> number(std::string_view key, double min, double max);
  std::optional<bool> boolean(std::string_view key);
  std::optional<std::string> string(std::string_view key);
  std::optional<std::vector<double>> numbers(std::string_view key, double min, double max);

  // Keeps a problem with a field: wrong in itself, or right but not supported.
  void invalid(std::string_view key, const std::string& reason);
  void unsupported(std::string_view key, const std::string& reason);

 private:
  void keep(StatusCode code, std::string_view key, const std::string& reason);

  const nlohmann::json& object_;
  std::string origin_, prefix_;
  Status status_;
};

}  // namespace zipage
