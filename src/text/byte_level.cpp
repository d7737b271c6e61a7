#include "text/byte_level.h"

#include <array>

#include "text/utf8.h"

namespace zipage {
namespace {

constexpr bool printable(unsigned byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

struct Alphabet {
  std::array<char16_t, 256> to_char{};
  std::array<int16_t, 0x144> to_byte{};
};

constexpr Alphabet make_alphabet() {
  Alphabet alphabet;
  for (int16_t& byte : alphabet.to_byte) byte = -1;
  unsigned next = 0x100;
  for (unsigned byte = 0; byte < 256; ++byte) {
    const unsigned c = printable(byte) ? byte : next++;
    alphabet.to_char[byte] = static_cast<char16_t>(c);
    alphabet.to_byte[c] = static_cast<int16_t>(byte);
  }
  return alphabet;
}

constexpr Alphabet kAlphabet = make_alphabet();

}  // namespace

char32_t byte_level_char(uint8_t byte) {
  return kAlphabet.to_char[byte];
}

std::string to_byte_level(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size() + bytes.size() / 4);
  for (const char c : bytes) append_utf8(out, byte_level_char(static_cast<uint8_t>(c)));
  return out;
}

std::string from_byte_level(std::string_view token) {
  std::string out;
  out.reserve(token.size());
  for (std::string_view rest = token; !rest.empty();) {
    const Utf8Unit unit = next_utf8_unit(rest);
    if (!unit.valid || unit.code_point >= kAlphabet.to_byte.size() || kAlphabet.to_byte[unit.code_point] < 0) {
      return std::string(token);
    }
    out.push_back(static_cast<char>(kAlphabet.to_byte[unit.code_point]));
    rest.remove_prefix(unit.size);
  }
  return out;
}

}  // namespace zipage
