// The alphabet in which byte-level BPE files spell bytes: one printable character per byte, so that
// " the" is "\u0120the". Source: GPT-2's bytes_to_unicode.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace rlk {

// The spelling of bytes, as UTF-8.
std::string spell_bytes(std::string_view bytes);

// The bytes that a spelling stands for; nothing when a character is outside the alphabet.
std::optional<std::string> bytes_of_spelling(std::string_view spelling);

}  // namespace rlk
