// Values as people type them: "1k", "1.5GiB", "yes", "4,8,16". Each returns nothing when the text is not one.
//
// Thread-safety: pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace zipage {

// A whole number, with an optional multiplier as vLLM takes it: k, m, g, t are powers of 1000, K, M, G, T powers of
// 1024; "KiB" and the like are powers of 1024, "kB" ("KB") and the like powers of 1000. A fraction is fine as long as
// the product is whole ("1.5GiB").
std::optional<int64_t> parse_whole_number(std::string_view text);
// A finite decimal number.
std::optional<double> parse_real(std::string_view text);
// true, false, yes, no, on, off, 1, 0.
std::optional<bool> parse_bool(std::string_view text);
// The trimmed pieces between the separators; "" has none.
std::vector<std::string_view> split_list(std::string_view text, char separator = ',');
std::string_view trim(std::string_view text);

}  // namespace zipage
