#include "text/json_fields.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/json_nesting.h"

namespace zipage {
namespace {

using nlohmann::json;

bool is_whole(const json& value) {
  return value.is_number_integer();
}  // neither true nor 1.5 nor "1"

// -1 where the value is beyond int64.
bool fits(const json& value, int64_t low, int64_t high) {
  if (value.is_number_unsigned() &&
      value.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
    return false;
  }
  const int64_t number = value.get<int64_t>();
  return number >= low && number <= high;
}

}  // namespace

std::string to_json_text(const json& value) {
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

std::string excerpt(const json& value) {
  constexpr size_t kMost = 60;
  // A huge list or object is not rendered only to be cut.
  if (value.is_structured() && value.size() > kMost) return value.is_array() ? "a long list" : "a large object";
  std::string text = to_json_text(value);
  if (text.size() <= kMost) return text;
  size_t end = kMost;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return text.substr(0, end) + "...";
}

Result<json> parse_json_object(std::string_view text) {
  if (json_nesting(text) > kMaxJsonDepth) {
    return invalid_argument(fmt::format("the JSON nests deeper than {} levels", kMaxJsonDepth));
  }
  try {
    json value = json::parse(text);
    if (!value.is_object()) return invalid_argument(fmt::format("must be a JSON object, not {}", excerpt(value)));
    return value;
  } catch (const json::exception& error) {
    // what() begins with the library's own tag, "[json.exception...] ".
    const std::string_view what = error.what();
    const size_t tag = what.find("] ");
    return invalid_argument(
        fmt::format("not valid JSON: {}", tag == std::string_view::npos ? what : what.substr(tag + 2)));
  }
}

const json* JsonFields::find(std::string_view key) const {
  if (!status_.ok()) return nullptr;
  const auto found = object_.find(key);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

void JsonFields::describe(std::string_view key, std::string_view schema) {
  if (table_ != nullptr) table_->emplace_back(key, schema);
}

void JsonFields::fail(std::string_view key, std::string message) {
  if (status_.ok()) status_ = invalid_argument(std::move(message)).with_param(std::string(key));
}

void JsonFields::read(std::string_view key, bool& target) {
  std::optional<bool> value;
  read(key, value);
  if (value) target = *value;
}

void JsonFields::read(std::string_view key, std::optional<bool>& target) {
  describe(key, R"({"type":["boolean","null"]})");
  const json* value = find(key);
  if (value == nullptr) return;
  if (!value->is_boolean()) return fail(key, fmt::format("{} must be true or false, not {}", key, excerpt(*value)));
  target = value->get<bool>();
}

void JsonFields::read(std::string_view key, std::string& target) {
  describe(key, R"({"type":["string","null"]})");
  const json* value = find(key);
  if (value == nullptr) return;
  if (!value->is_string()) return fail(key, fmt::format("{} must be a string, not {}", key, excerpt(*value)));
  target = value->get<std::string>();
}

void JsonFields::read(std::string_view key, float& target, Range range) {
  const std::string most = std::isinf(range.high) ? "" : fmt::format(R"(,"maximum":{})", range.high);
  describe(key, fmt::format(R"({{"type":["number","null"],"{}":{}{}}})",
                            range.above_low ? "exclusiveMinimum" : "minimum", range.low, most));
  const json* value = find(key);
  if (value == nullptr) return;
  if (!value->is_number()) return fail(key, fmt::format("{} must be a number, not {}", key, excerpt(*value)));
  const auto number = value->get<double>();
  const bool good = (range.above_low ? number > range.low : number >= range.low) && number <= range.high;
  if (!good) {
    const std::string low = fmt::format("{} {}", range.above_low ? "above" : "at least", range.low);
    const std::string high = std::isinf(range.high) ? "" : fmt::format(" and at most {}", range.high);
    return fail(key, fmt::format("{} must be {}{}, not {}", key, low, high, excerpt(*value)));
  }
  target = static_cast<float>(std::min(number, static_cast<double>(std::numeric_limits<float>::max())));
}

std::optional<int64_t> JsonFields::whole_number(std::string_view key, int64_t low, int64_t high) {
  describe(key, fmt::format(R"({{"type":["integer","null"],"minimum":{},"maximum":{}}})", low, high));
  const json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (is_whole(*value) && fits(*value, low, high)) return value->get<int64_t>();
  std::string wanted = "a whole number";
  if (low > std::numeric_limits<int64_t>::min()) wanted += fmt::format(" of at least {}", low);
  if (high < std::numeric_limits<int>::max()) wanted += fmt::format(" and at most {}", high);
  fail(key, fmt::format("{} must be {}, not {}", key, wanted, excerpt(*value)));
  return std::nullopt;
}

void JsonFields::read(std::string_view key, int& target, int low, int high) {
  if (const auto number = whole_number(key, low, high)) target = static_cast<int>(*number);
}

void JsonFields::read(std::string_view key, std::optional<int>& target, int low, int high) {
  if (const auto number = whole_number(key, low, high)) target = static_cast<int>(*number);
}

void JsonFields::read(std::string_view key, std::optional<int64_t>& target) {
  using Limits = std::numeric_limits<int64_t>;
  if (const auto number = whole_number(key, Limits::min(), Limits::max())) target = *number;
}

Result<std::vector<int32_t>> token_ids_of(const json& list, std::string_view key, int vocab_size) {
  const auto fault = [&](const json& value) {
    return invalid_argument(fmt::format("{} must be a list of token ids, each at least 0 and below {}; found {}", key,
                                        vocab_size, excerpt(value)))
        .with_param(std::string(key));
  };
  if (!list.is_array()) return fault(list);
  std::vector<int32_t> ids;
  ids.reserve(list.size());
  for (const json& item : list) {
    if (!is_whole(item) || !fits(item, 0, int64_t{vocab_size} - 1)) return fault(item);
    ids.push_back(item.get<int32_t>());
  }
  return ids;
}

void JsonFields::read_token_ids(std::string_view key, std::vector<int32_t>& target, int vocab_size) {
  describe(key, fmt::format(R"({{"type":["array","null"],"items":{{"type":"integer","minimum":0,"maximum":{}}}}})",
                            vocab_size - 1));
  const json* value = find(key);
  if (value == nullptr) return;
  Result<std::vector<int32_t>> ids = token_ids_of(*value, key, vocab_size);
  if (ids.ok()) {
    target = *std::move(ids);
  } else {
    status_ = ids.status();
  }
}

void JsonFields::read_strings(std::string_view key, std::vector<std::string>& target) {
  describe(key, R"({"anyOf":[{"type":"string","minLength":1},{"type":"array","items":{"type":"string","minLength":1}},)"
                R"({"type":"null"}]})");
  const json* value = find(key);
  if (value == nullptr) return;
  std::vector<std::string> strings;
  const json list = value->is_string() ? json::array({*value}) : *value;
  const auto fault = [&] { fail(key, fmt::format("{} must be a string or a list of strings, none empty", key)); };
  if (!list.is_array()) return fault();
  for (const json& item : list) {
    if (!item.is_string() || item.get_ref<const std::string&>().empty()) return fault();
    strings.push_back(item.get<std::string>());
  }
  target = std::move(strings);
}

void JsonFields::read_object(std::string_view key, std::string& target) {
  describe(key, R"({"type":["object","null"]})");
  const json* value = find(key);
  if (value == nullptr) return;
  if (!value->is_object()) return fail(key, fmt::format("{} must be an object, not {}", key, excerpt(*value)));
  target = to_json_text(*value);
}

void JsonFields::read_list(std::string_view key, std::string& target) {
  describe(key, R"({"type":["array","null"]})");
  const json* value = find(key);
  if (value == nullptr) return;
  if (!value->is_array()) return fail(key, fmt::format("{} must be a list, not {}", key, excerpt(*value)));
  target = to_json_text(*value);
}

}  // namespace zipage
