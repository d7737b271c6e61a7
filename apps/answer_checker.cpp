#include "answer_checker.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <optional>
#include <string>

#include "base/nearest.h"
#include "base/parse_value.h"

namespace zipage::apps {
namespace {

constexpr std::string_view kNames[] = {"exact", "number", "boxed"};

bool is_digit(char c) {
  return std::isdigit(static_cast<unsigned char>(c)) != 0;
}

std::string without_spaces(std::string_view text) {
  std::string result;
  std::copy_if(text.begin(), text.end(), std::back_inserter(result),
               [](unsigned char c) { return std::isspace(c) == 0; });
  return result;
}

// The number whose last digit is at `last`: digits, commas between them, at most one point, a sign in front that no
// digit precedes ("3-4" ends in 4).
double number_ending_at(std::string_view text, size_t last) {
  size_t begin = last;
  bool point = false;
  while (begin > 0) {
    const char c = text[begin - 1];
    const bool after_digit = begin > 1 && is_digit(text[begin - 2]);
    if (c == '.' && !point) {
      point = true;
    } else if (!is_digit(c) && !(c == ',' && after_digit)) {
      break;
    }
    --begin;
  }
  if (begin > 0 && text[begin - 1] == '-' && (begin == 1 || !is_digit(text[begin - 2]))) --begin;
  std::string digits(text.substr(begin, last - begin + 1));
  std::erase(digits, ',');
  return parse_real(digits).value_or(0);
}

std::optional<double> last_number(std::string_view text) {
  for (size_t i = text.size(); i-- > 0;) {
    if (is_digit(text[i])) return number_ending_at(text, i);
  }
  return std::nullopt;
}

// What stands in the last \boxed{...}, braces within it balanced.
std::optional<std::string_view> last_boxed(std::string_view text) {
  constexpr std::string_view kOpen = "\\boxed{";
  const size_t at = text.rfind(kOpen);
  if (at == std::string_view::npos) return std::nullopt;
  const std::string_view rest = text.substr(at + kOpen.size());
  int depth = 1;
  for (size_t i = 0; i < rest.size(); ++i) {
    if (rest[i] == '{') ++depth;
    if (rest[i] == '}' && --depth == 0) return rest.substr(0, i);
  }
  return std::nullopt;
}

bool equal_value(std::string_view answer, std::string_view expected) {
  std::string left = without_spaces(answer), right = without_spaces(expected);
  if (left == right) return true;
  std::erase(left, ',');
  std::erase(right, ',');
  const std::optional<double> a = parse_real(left), b = parse_real(right);
  return a && b && *a == *b;
}

}  // namespace

Result<AnswerChecker> answer_checker(std::string_view name) {
  for (size_t i = 0; i < std::size(kNames); ++i) {
    if (kNames[i] == name) return static_cast<AnswerChecker>(i);
  }
  const std::string_view nearest = nearest_word(name, kNames);
  return invalid_argument(fmt::format("--checker must be one of {}, not '{}'{}", fmt::join(kNames, ", "), name,
                                      nearest.empty() ? "" : fmt::format("; did you mean {}?", nearest)))
      .with_param("checker");
}

bool is_right(AnswerChecker checker, std::string_view answer, std::string_view expected) {
  switch (checker) {
    case AnswerChecker::kExact:
      return trim(answer) == trim(expected);
    case AnswerChecker::kNumber: {
      const std::optional<double> said = last_number(answer), wanted = last_number(expected);
      return said && wanted && *said == *wanted;
    }
    case AnswerChecker::kBoxed: {
      const std::optional<std::string_view> said = last_boxed(answer);
      return said && equal_value(*said, last_boxed(expected).value_or(expected));
    }
  }
  return false;
}

}  // namespace zipage::apps
