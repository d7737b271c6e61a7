#include "base/parse_value.h"

#include <charconv>
#include <cmath>
#include <limits>

namespace zipage {
namespace {

// The multiplier that a suffix stands for; 0 for an unknown one.
__int128 multiplier(std::string_view suffix) {
  if (suffix.empty()) return 1;
  constexpr std::string_view kLetters = "kmgt";
  const char letter = suffix[0];
  const bool upper = letter >= 'A' && letter <= 'Z';
  const size_t power = kLetters.find(upper ? static_cast<char>(letter - 'A' + 'a') : letter);
  if (power == std::string_view::npos) return 0;
  const std::string_view unit = suffix.substr(1);
  int base = upper ? 1024 : 1000;
  if (unit == "iB") {
    base = 1024;
  } else if (unit == "B") {
    base = 1000;
  } else if (!unit.empty()) {
    return 0;
  }
  __int128 result = 1;
  for (size_t i = 0; i <= power; ++i) result *= base;
  return result;
}

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

}  // namespace

std::optional<int64_t> parse_whole_number(std::string_view text) {
  const bool negative = text.starts_with('-');
  if (negative || text.starts_with('+')) text.remove_prefix(1);
  // The digits without their point, at most as many as 128 bits hold after the largest multiplier (2^40).
  constexpr int kMaxDigits = 25;
  __int128 digits = 0, divisor = 1;
  int count = 0;
  bool fraction = false;
  size_t i = 0;
  for (; i < text.size() && (is_digit(text[i]) || (text[i] == '.' && !fraction && i > 0)); ++i) {
    if (text[i] == '.') {
      fraction = true;
      continue;
    }
    if (++count > kMaxDigits) return std::nullopt;
    digits = digits * 10 + (text[i] - '0');
    if (fraction) divisor *= 10;
  }
  if (count == 0 || text[i - 1] == '.') return std::nullopt;
  const __int128 factor = multiplier(text.substr(i));
  if (factor == 0 || (fraction && factor == 1) || digits * factor % divisor != 0) return std::nullopt;
  const __int128 value = digits * factor / divisor * (negative ? -1 : 1);
  if (value > std::numeric_limits<int64_t>::max() || value < std::numeric_limits<int64_t>::min()) return std::nullopt;
  return static_cast<int64_t>(value);
}

std::optional<double> parse_real(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value)) return std::nullopt;
  return value;
}

std::optional<bool> parse_bool(std::string_view text) {
  if (text == "true" || text == "True" || text == "yes" || text == "on" || text == "1") return true;
  if (text == "false" || text == "False" || text == "no" || text == "off" || text == "0") return false;
  return std::nullopt;
}

std::string_view trim(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n";
  const size_t first = text.find_first_not_of(kSpace);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kSpace) - first + 1);
}

std::vector<std::string_view> split_list(std::string_view text, char separator) {
  std::vector<std::string_view> pieces;
  if (trim(text).empty()) return pieces;
  size_t begin = 0;
  while (true) {
    const size_t end = text.find(separator, begin);
    pieces.push_back(trim(text.substr(begin, end == std::string_view::npos ? end : end - begin)));
    if (end == std::string_view::npos) return pieces;
    begin = end + 1;
  }
}

}  // namespace zipage
