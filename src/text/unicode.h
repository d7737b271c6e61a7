// Character classes and normal forms as Hugging Face `tokenizers` uses them.
//
// Thread-safety: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace zipage {

bool is_white_space(char32_t c);  // the White_Space property
bool is_word_char(char32_t c);    // letters, marks, decimal digits, connectors, joiners
bool is_numeric(char32_t c);      // Nd, Nl, No
bool is_punctuation(char32_t c);  // ASCII punctuation and P*
bool is_mark(char32_t c);

enum class NormalForm : uint8_t { kNfc, kNfd, kNfkc, kNfkd };
// REQUIRES: valid UTF-8.
std::string normalize(std::string_view text, NormalForm form);
// Character by character, without context (no final sigma).
std::string lowercase(std::string_view text);

}  // namespace zipage
