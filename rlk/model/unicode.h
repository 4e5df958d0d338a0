// UTF-8 and the few Unicode properties that tokenizers ask for.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace rlk {

// Bytes of the valid UTF-8 sequence at the start of text; 0 when there is none (empty, overlong,
// surrogate, above U+10FFFF, cut off).
std::size_t utf8_length(std::string_view text);

// The code point at the start of text, which must be valid UTF-8 there.
char32_t first_code_point(std::string_view text);

void append_utf8(std::string& out, char32_t code_point);

// Bytes at the start of text that are valid UTF-8, and bytes there that are not part of any.
std::size_t valid_prefix(std::string_view text);
std::size_t invalid_prefix(std::string_view text);

// Normalisation form C of valid UTF-8, by utf8proc's tables. Those of the Hugging Face library are
// older: it leaves marks that came after about Unicode 9 (2016) where they stand.
std::string to_nfc(std::string_view text);

// White_Space, and the characters of words (letters, marks, numbers, connectors, joiners).
bool is_white_space(char32_t code_point);
bool is_word_character(char32_t code_point);

}  // namespace rlk
