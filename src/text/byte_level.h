// GPT-2's alphabet: every byte as a printable character, so that a vocabulary of strings can hold any bytes.
//
// Thread-safety: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace zipage {

char32_t byte_level_char(uint8_t byte);
// Each byte as its character (1 or 2 bytes of UTF-8).
std::string to_byte_level(std::string_view bytes);
// The bytes of a token; a token with a character outside of the alphabet stands for itself.
std::string from_byte_level(std::string_view token);

}  // namespace zipage
