#include "rlk/verify/html.h"

#include <cmath>
#include <cstdlib>

#include <fmt/format.h>

namespace rlk::html {

namespace {

constexpr const char* kNone = "\xe2\x80\x93";  // en dash

// Length of the UTF-8 sequence at text[i], 0 when it is not one.
std::size_t sequence_length(std::string_view text, std::size_t i) {
  const auto byte = [&](std::size_t k) -> unsigned {
    return i + k < text.size() ? static_cast<unsigned char>(text[i + k]) : 0U;
  };
  const auto continues = [&](std::size_t k) { return (byte(k) & 0xC0U) == 0x80U; };
  const unsigned b = byte(0);
  if (b < 0x80) return 1;
  if (b >= 0xC2 && b <= 0xDF && continues(1)) return 2;
  if (b >= 0xE0 && b <= 0xEF && continues(1) && continues(2)) {
    const bool overlong = b == 0xE0 && byte(1) < 0xA0;
    const bool surrogate = b == 0xED && byte(1) >= 0xA0;
    return overlong || surrogate ? 0 : 3;
  }
  if (b >= 0xF0 && b <= 0xF4 && continues(1) && continues(2) && continues(3)) {
    const bool overlong = b == 0xF0 && byte(1) < 0x90;
    const bool too_large = b == 0xF4 && byte(1) >= 0x90;
    return overlong || too_large ? 0 : 4;
  }
  return 0;
}

std::string group_digits(const std::string& digits) {
  const std::size_t begin = digits.starts_with('-') ? 1 : 0;
  const std::size_t end = std::min(digits.find('.'), digits.size());
  std::string result = digits.substr(0, begin);
  for (std::size_t i = begin; i < digits.size(); ++i) {
    if (i > begin && i < end && (end - i) % 3 == 0) result += ',';
    result += digits[i];
  }
  return result;
}

}  // namespace

std::string escape(std::string_view text) {
  std::string result;
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t length = sequence_length(text, i);
    const char c = text[i];
    if (length != 1) {
      result += length == 0 ? std::string_view("\xef\xbf\xbd") : text.substr(i, length);
    } else if (c == '&') {
      result += "&amp;";
    } else if (c == '<') {
      result += "&lt;";
    } else if (c == '>') {
      result += "&gt;";
    } else if (c == '"') {
      result += "&quot;";
    } else if (c == '\'') {
      result += "&#39;";
    } else if ((c >= 0 && c < 0x20 && c != '\n' && c != '\t') || c == 0x7F) {
      // U+2400 + c, as UTF-8; U+2421 for DEL.
      result += "\xe2\x90";
      result += static_cast<char>(0x80 + (c == 0x7F ? 0x21 : c));
    } else {
      result += c;
    }
    i += length == 0 ? 1 : length;
  }
  return result;
}

std::string integer(std::int64_t value) { return group_digits(std::to_string(value)); }

std::string fixed(double value, int digits) {
  if (std::isnan(value)) return kNone;
  return group_digits(fmt::format("{:.{}f}", value, digits));
}

std::string power_of_ten(int exponent) {
  constexpr const char* kSuperscripts[] = {
      "\xe2\x81\xb0", "\xc2\xb9",     "\xc2\xb2",     "\xc2\xb3",     "\xe2\x81\xb4",
      "\xe2\x81\xb5", "\xe2\x81\xb6", "\xe2\x81\xb7", "\xe2\x81\xb8", "\xe2\x81\xb9"};
  std::string result = "10";
  if (exponent < 0) result += "\xe2\x81\xbb";
  for (const char c : std::to_string(std::abs(exponent))) result += kSuperscripts[c - '0'];
  return result;
}

std::string significant(double value, int digits) {
  if (std::isnan(value)) return kNone;
  if (value == 0) return "0";
  if (std::isinf(value)) return value > 0 ? "\xe2\x88\x9e" : "-\xe2\x88\x9e";
  // The exponent after rounding: 9.99 with two digits is 10.
  const std::string scientific = fmt::format("{:.{}e}", value, digits - 1);
  const std::size_t e = scientific.find('e');
  const int exponent = std::stoi(scientific.substr(e + 1));
  if (exponent >= -2 && exponent < 7) return fixed(value, std::max(0, digits - 1 - exponent));
  return scientific.substr(0, e) + "\xc2\xa0\xc3\x97\xc2\xa0" + power_of_ten(exponent);
}

std::string percent(std::int64_t part, std::int64_t whole) {
  if (whole <= 0) return kNone;
  if (part == 0) return "0\xc2\xa0%";
  if (part == whole) return "100\xc2\xa0%";
  const double value = 100.0 * static_cast<double>(part) / static_cast<double>(whole);
  if (value < 0.1)
    return "<\xc2\xa0"
           "0.1\xc2\xa0%";
  if (value > 99.9)
    return ">\xc2\xa0"
           "99.9\xc2\xa0%";
  return fixed(value, 1) + "\xc2\xa0%";
}

std::string seconds(double value) {
  if (std::isnan(value)) return kNone;
  if (value == 0) return "0\xc2\xa0s";
  if (value < 0.9995) return significant(1000 * value, 3) + "\xc2\xa0ms";
  if (value < 100) return significant(value, 3) + "\xc2\xa0s";
  const auto total = static_cast<std::int64_t>(std::lround(value));
  const std::int64_t hours = total / 3600;
  const std::int64_t minutes = total / 60 % 60;
  if (hours > 0) return fmt::format("{}\xc2\xa0h {}\xc2\xa0min", hours, minutes);
  return fmt::format("{}\xc2\xa0min {}\xc2\xa0s", minutes, total % 60);
}

}  // namespace rlk::html
