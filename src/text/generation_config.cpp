#include "text/generation_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace zipage {
namespace {

using nlohmann::json;

Status wrong(std::string_view origin, std::string_view key, const json& value, std::string_view expected) {
  return invalid_argument(fmt::format("{}: {} is {}, expected {}", origin, key, value.dump(), expected));
}

Status read_eos(const json& value, std::string_view origin, std::vector<int32_t>& ids) {
  std::vector<int32_t> found;
  for (const json& id : value.is_array() ? value : json::array({value})) {
    if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() > INT32_MAX) {
      return wrong(origin, "eos_token_id", value, "an id or a list of ids");
    }
    found.push_back(id.get<int32_t>());
  }
  ids = std::move(found);
  return {};
}

}  // namespace

Status apply_generation_config(std::string_view text, std::string_view origin, GenerationDefaults& defaults) {
  const json root = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!root.is_object()) return {StatusCode::kDataLoss, fmt::format("{}: not a JSON object", origin)};
  const auto has = [&](const char* key) { return root.contains(key) && !root[key].is_null(); };
  const struct {
    const char* key;
    float* value;
  } floats[] = {{"temperature", &defaults.sampling.temperature},
                {"top_p", &defaults.sampling.top_p},
                {"min_p", &defaults.sampling.min_p},
                {"repetition_penalty", &defaults.sampling.repetition_penalty}};
  for (const auto& [key, value] : floats) {
    if (!has(key)) continue;
    if (!root[key].is_number()) return wrong(origin, key, root[key], "a number");
    *value = root[key].get<float>();
  }
  const struct {
    const char* key;
    int* value;
  } ints[] = {{"top_k", &defaults.sampling.top_k}, {"max_new_tokens", &defaults.sampling.max_tokens}};
  for (const auto& [key, value] : ints) {
    if (!has(key)) continue;
    const json& node = root[key];
    if (!node.is_number_integer() || node.get<int64_t>() < -1 || node.get<int64_t>() > INT32_MAX) {
      return wrong(origin, key, node, "a whole number");
    }
    *value = node.get<int>();
  }
  if (has("do_sample")) {
    if (!root["do_sample"].is_boolean()) return wrong(origin, "do_sample", root["do_sample"], "true or false");
    if (!root["do_sample"].get<bool>()) defaults.sampling.temperature = 0;
  }
  if (has("eos_token_id")) return read_eos(root["eos_token_id"], origin, defaults.eos_token_ids);
  return {};
}

}  // namespace zipage
