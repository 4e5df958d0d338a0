// Regular expressions as tokenizer.json files write them.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace rlk {

struct Match {
  std::size_t begin = 0;
  std::size_t end = 0;
};

// The files are written for Oniguruma, we match with PCRE2. Accepted is what both read alike:
// classes, \p{..}, \s, \S, \d, the usual escapes, quantifiers, (?: (?i: (?= (?! (?<= (?<! groups.
// Refused is what they read differently: \w \W \b \B \h and other letters, classes in classes,
// POSIX classes, other flags. \s is rewritten, because PCRE2 counts U+180E as white space.
class Regex {
 public:
  // Errors: kUnsupported, naming where and the construct.
  Regex(std::string_view pattern, const std::string& where);

  // The first match that begins at text[begin] or later. text must be valid UTF-8, and begin the
  // start of a character. Errors: kInvalidArgument when the match needs too much work.
  std::optional<Match> find(std::string_view text, std::size_t begin) const;

 private:
  std::shared_ptr<void> code_;
};

// A pattern that matches exactly this text.
std::string escape_regex(std::string_view text);

}  // namespace rlk
