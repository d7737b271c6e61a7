// Reads the fields of a JSON object that somebody sent, one by one, with one sentence for what is wrong.
//
// Thread-safety: one thread.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "zipage/status.h"

namespace zipage {

// An object out of text. Refuses what is not JSON (lone surrogates and bad UTF-8 among it), what is no object, and
// nesting deeper than kMaxJsonDepth.
inline constexpr int kMaxJsonDepth = 64;
Result<nlohmann::json> parse_json_object(std::string_view text);

// Valid JSON text whatever bytes the strings hold: invalid UTF-8 becomes U+FFFD.
std::string to_json_text(const nlohmann::json& value);

// A short rendering of a value for an error message.
std::string excerpt(const nlohmann::json& value);

// Bounds of a number; both ends belong to the range unless `above_low`.
struct Range {
  double low, high;
  bool above_low = false;
};

// What a field may be, as a JSON schema's text, by its name; in the order that the fields are read in.
using FieldTable = std::vector<std::pair<std::string, std::string>>;

// Each read leaves its target alone when the field is absent or null. The first fault is kept, with the field's name as
// param(); reads after it do nothing.
class JsonFields {
 public:
  // `table`: where not null, gets an entry for every field that is read, so that what is checked and what is documented
  // are one thing.
  explicit JsonFields(const nlohmann::json& object, FieldTable* table = nullptr) : object_(object), table_(table) {}

  // The field's value; null when it is absent, null, or a fault was found already.
  const nlohmann::json* find(std::string_view key) const;

  void read(std::string_view key, bool& target);
  void read(std::string_view key, std::optional<bool>& target);
  void read(std::string_view key, std::string& target);
  void read(std::string_view key, float& target, Range range);
  void read(std::string_view key, int& target, int low, int high);
  void read(std::string_view key, std::optional<int>& target, int low, int high);
  void read(std::string_view key, std::optional<int64_t>& target);
  // Ids in [0, vocab_size).
  void read_token_ids(std::string_view key, std::vector<int32_t>& target, int vocab_size);
  // A string or a list of strings, none of them empty.
  void read_strings(std::string_view key, std::vector<std::string>& target);
  // The object or list as JSON text.
  void read_object(std::string_view key, std::string& target);
  void read_list(std::string_view key, std::string& target);

  // The schema of a field that find() gives.
  void describe(std::string_view key, std::string_view schema);

  void fail(std::string_view key, std::string message);
  bool ok() const { return status_.ok(); }
  const Status& status() const { return status_; }

 private:
  std::optional<int64_t> whole_number(std::string_view key, int64_t low, int64_t high);

  const nlohmann::json& object_;
  FieldTable* table_;
  Status status_;
};

// A list of token ids in [0, vocab_size). Errors name `key`.
Result<std::vector<int32_t>> token_ids_of(const nlohmann::json& list, std::string_view key, int vocab_size);

}  // namespace zipage
