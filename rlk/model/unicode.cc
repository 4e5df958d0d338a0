#include "rlk/model/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>

#include "rlk/core/error.h"

namespace rlk {
namespace {

unsigned char byte_at(std::string_view text, std::size_t i) {
  return static_cast<unsigned char>(text[i]);
}

bool is_continuation(unsigned char byte) { return (byte & 0xc0) == 0x80; }

// The second byte decides about overlong forms, surrogates and the end of Unicode.
bool is_second_byte(unsigned char first, unsigned char second) {
  switch (first) {
    case 0xe0: return second >= 0xa0 && second <= 0xbf;
    case 0xed: return second >= 0x80 && second <= 0x9f;
    case 0xf0: return second >= 0x90 && second <= 0xbf;
    case 0xf4: return second >= 0x80 && second <= 0x8f;
    default: return is_continuation(second);
  }
}

}  // namespace

std::size_t utf8_length(std::string_view text) {
  if (text.empty()) return 0;
  const unsigned char first = byte_at(text, 0);
  if (first < 0x80) return 1;
  if (first < 0xc2 || first > 0xf4) return 0;
  const std::size_t length = first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
  if (text.size() < length || !is_second_byte(first, byte_at(text, 1))) return 0;
  for (std::size_t i = 2; i < length; ++i) {
    if (!is_continuation(byte_at(text, i))) return 0;
  }
  return length;
}

char32_t first_code_point(std::string_view text) {
  const std::size_t length = utf8_length(text);
  RLK_ASSERT(length > 0);
  if (length == 1) return byte_at(text, 0);
  char32_t code_point = byte_at(text, 0) & (0x7fu >> length);
  for (std::size_t i = 1; i < length; ++i) code_point = code_point << 6 | (byte_at(text, i) & 0x3f);
  return code_point;
}

void append_utf8(std::string& out, char32_t code_point) {
  utf8proc_uint8_t buffer[4];
  const auto length = utf8proc_encode_char(static_cast<utf8proc_int32_t>(code_point), buffer);
  out.append(reinterpret_cast<const char*>(buffer), static_cast<std::size_t>(length));
}

std::size_t valid_prefix(std::string_view text) {
  std::size_t end = 0;
  while (const std::size_t length = utf8_length(text.substr(end))) end += length;
  return end;
}

std::size_t invalid_prefix(std::string_view text) {
  std::size_t end = 0;
  while (end < text.size() && utf8_length(text.substr(end)) == 0) ++end;
  return end;
}

std::string to_nfc(std::string_view text) {
  const bool ascii = std::all_of(text.begin(), text.end(),
                                 [](char c) { return static_cast<unsigned char>(c) < 0x80; });
  if (ascii) return std::string(text);
  utf8proc_uint8_t* normalized = nullptr;
  const auto length =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                   static_cast<utf8proc_ssize_t>(text.size()), &normalized,
                   static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  if (length < 0) {
    fail(ErrorCode::kInvalidArgument, "NFC of {} bytes of text: {}", text.size(),
         utf8proc_errmsg(length));
  }
  std::string result(reinterpret_cast<const char*>(normalized), static_cast<std::size_t>(length));
  std::free(normalized);
  return result;
}

bool is_white_space(char32_t code_point) {
  if ((code_point >= 0x09 && code_point <= 0x0d) || code_point == 0x85) return true;
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(code_point))) {
    case UTF8PROC_CATEGORY_ZS:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP: return true;
    default: return false;
  }
}

bool is_word_character(char32_t code_point) {
  if (code_point == 0x200c || code_point == 0x200d) return true;
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(code_point))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC: return true;
    default: return false;
  }
}

}  // namespace rlk
