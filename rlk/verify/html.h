// Text for HTML: escaping, and numbers as people read them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace rlk::html {

// Safe in element content and in quoted attributes. Bytes that are not UTF-8 become U+FFFD,
// control characters their visible pictures (U+2400 onwards); line feeds and tabs stay.
std::string escape(std::string_view text);

std::string integer(std::int64_t value);            // 1,234,567
std::string fixed(double value, int digits);        // 1,234.50; an en dash for NaN
std::string significant(double value, int digits);  // 0.0123, 4,560, 1.2 x 10^-7 in Unicode
std::string percent(std::int64_t part, std::int64_t whole);  // 66.6 %; never 0 % or 100 % rounded
std::string power_of_ten(int exponent);                      // 10 with a Unicode superscript
std::string seconds(double value);                           // 1.234 s, 45 ms, 3 min 20 s

}  // namespace rlk::html
