// UTF-8: checking, mending, walking. "Maximal subpart" is Unicode's unit for replacement: the longest prefix of a valid
// character at that place, or one byte.
//
// Thread-safety: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace zipage {

inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";

// The unit at the front of `text`.
struct Utf8Unit {
  char32_t code_point = 0;  // U+FFFD when invalid
  uint8_t size = 0;         // bytes: of the character, or of the maximal subpart; 0 only for empty text
  bool valid = false;
  bool incomplete = false;  // not valid, but the text ends here and more bytes could make it so
};
Utf8Unit next_utf8_unit(std::string_view text);

bool is_valid_utf8(std::string_view text);
// Each maximal subpart of an invalid sequence becomes one U+FFFD.
std::string replace_invalid_utf8(std::string_view text);
// Bytes at the end that begin a character without finishing it: 0 to 3.
size_t incomplete_utf8_suffix(std::string_view text);
// REQUIRES: a scalar value (no surrogate, at most U+10FFFF).
void append_utf8(std::string& out, char32_t code_point);

}  // namespace zipage
