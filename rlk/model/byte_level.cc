#include "rlk/model/byte_level.h"

#include <array>

#include "rlk/model/unicode.h"

namespace rlk {
namespace {

constexpr int kSymbols = 0x144;  // one past the greatest symbol

struct Alphabet {
  std::array<char32_t, 256> symbol_of{};
  std::array<int, kSymbols> byte_of{};
};

// Printable Latin-1 characters stand for themselves, the other bytes for U+0100, U+0101, ...
Alphabet make_alphabet() {
  Alphabet alphabet;
  alphabet.byte_of.fill(-1);
  char32_t next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte != 0xad);
    const char32_t symbol = printable ? static_cast<char32_t>(byte) : next++;
    alphabet.symbol_of[static_cast<std::size_t>(byte)] = symbol;
    alphabet.byte_of[symbol] = byte;
  }
  return alphabet;
}

const Alphabet& alphabet() {
  static const Alphabet value = make_alphabet();
  return value;
}

}  // namespace

std::string spell_bytes(std::string_view bytes) {
  std::string spelling;
  for (char c : bytes) append_utf8(spelling, alphabet().symbol_of[static_cast<unsigned char>(c)]);
  return spelling;
}

std::optional<std::string> bytes_of_spelling(std::string_view spelling) {
  std::string bytes;
  while (!spelling.empty()) {
    const std::size_t length = utf8_length(spelling);
    if (length == 0) return std::nullopt;
    const char32_t symbol = first_code_point(spelling);
    const int byte = symbol < kSymbols ? alphabet().byte_of[symbol] : -1;
    if (byte < 0) return std::nullopt;
    bytes += static_cast<char>(byte);
    spelling.remove_prefix(length);
  }
  return bytes;
}

}  // namespace rlk
