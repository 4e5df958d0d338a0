#include "rlk/model/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <cctype>
#include <utility>

#include "rlk/core/error.h"

namespace rlk {
namespace {

constexpr std::size_t kJitStackBytesMax = std::size_t{8} << 20;
constexpr std::string_view kWhiteSpace = R"(\t-\r\x{85}\p{Z})";

// Rewrites a pattern from Oniguruma's syntax to PCRE2's and refuses what has no equal.
class Translator {
 public:
  Translator(std::string_view pattern, const std::string& where)
      : pattern_(pattern), where_(where) {}

  std::string translate() {
    while (i_ < pattern_.size()) {
      const char c = pattern_[i_];
      if (c == '\\') {
        escape();
      } else if (c == '[') {
        open_class();
      } else if (c == ']' && in_class_) {
        in_class_ = false;
        copy(1);
      } else if (c == '(' && !in_class_) {
        group();
      } else if (in_class_ && pattern_.substr(i_).starts_with("&&")) {
        refuse("&&");
      } else {
        copy(1);
      }
    }
    return std::move(out_);
  }

 private:
  void copy(std::size_t count) {
    out_.append(pattern_.substr(i_, count));
    i_ += count;
  }

  [[noreturn]] void refuse(std::string_view construct) const {
    fail(ErrorCode::kUnsupported, "{}: regex \"{}\": \"{}\" at byte {} is not supported", where_,
         pattern_, construct, i_);
  }

  void escape() {
    if (i_ + 1 >= pattern_.size()) refuse("\\");
    const char c = pattern_[i_ + 1];
    if (c == 's') {
      out_.append(in_class_ ? std::string(kWhiteSpace) : "[" + std::string(kWhiteSpace) + "]");
      i_ += 2;
    } else if (c == 'S' && !in_class_) {
      out_.append("[^" + std::string(kWhiteSpace) + "]");
      i_ += 2;
    } else {
      const bool letter_or_digit = std::isalnum(static_cast<unsigned char>(c)) != 0;
      if (letter_or_digit && std::string_view("pPdDtnrfvx").find(c) == std::string_view::npos) {
        refuse(pattern_.substr(i_, 2));
      }
      if (c == 'v') {  // Oniguruma: the character U+000B; PCRE2: any vertical space
        out_.append("\\x0b");
        i_ += 2;
        return;
      }
      copy(2);
    }
  }

  void open_class() {
    if (in_class_) refuse("[");
    in_class_ = true;
    copy(1);
    if (i_ < pattern_.size() && pattern_[i_] == '^') copy(1);
    if (i_ < pattern_.size() && pattern_[i_] == ']') refuse("]");
  }

  void group() {
    const std::string_view rest = pattern_.substr(i_);
    if (!rest.starts_with("(?") && !rest.starts_with("(*")) return copy(1);
    for (std::string_view known : {"(?:", "(?i:", "(?=", "(?!", "(?<=", "(?<!", "(?>"}) {
      if (rest.starts_with(known)) return copy(known.size());
    }
    refuse(rest.substr(0, 4));
  }

  std::string_view pattern_;
  const std::string& where_;
  std::string out_;
  std::size_t i_ = 0;
  bool in_class_ = false;
};

// What a thread needs to match; made once per thread because the stack is large.
struct Scratch {
  pcre2_match_data* data = pcre2_match_data_create(1, nullptr);
  pcre2_match_context* context = pcre2_match_context_create(nullptr);
  pcre2_jit_stack* stack = pcre2_jit_stack_create(32768, kJitStackBytesMax, nullptr);

  Scratch() { pcre2_jit_stack_assign(context, nullptr, stack); }
  ~Scratch() {
    pcre2_jit_stack_free(stack);
    pcre2_match_context_free(context);
    pcre2_match_data_free(data);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
};

std::string message_of(int error) {
  PCRE2_UCHAR buffer[256];
  pcre2_get_error_message(error, buffer, sizeof buffer);
  return reinterpret_cast<const char*>(buffer);
}

}  // namespace

Regex::Regex(std::string_view pattern, const std::string& where) {
  const std::string translated = Translator(pattern, where).translate();
  int error = 0;
  PCRE2_SIZE offset = 0;
  // Oniguruma's ^ and $ match at every line.
  pcre2_code* code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE, &error, &offset, nullptr);
  if (!code) {
    fail(ErrorCode::kUnsupported, "{}: regex \"{}\": {}", where, pattern, message_of(error));
  }
  code_ = std::shared_ptr<void>(
      code, [](void* pointer) { pcre2_code_free(static_cast<pcre2_code*>(pointer)); });
  pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);  // where there is no JIT, the interpreter matches
}

std::optional<Match> Regex::find(std::string_view text, std::size_t begin) const {
  thread_local const Scratch scratch;
  const int result = pcre2_match(static_cast<const pcre2_code*>(code_.get()),
                                 reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), begin,
                                 PCRE2_NO_UTF_CHECK, scratch.data, scratch.context);
  if (result == PCRE2_ERROR_NOMATCH) return std::nullopt;
  if (result < 0) {
    fail(ErrorCode::kInvalidArgument, "tokenizer: the pre-tokenizer's regex fails on {} bytes: {}",
         text.size(), message_of(result));
  }
  const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(scratch.data);
  return Match{ends[0], ends[1]};
}

std::string escape_regex(std::string_view text) {
  std::string pattern;
  for (char c : text) {
    const bool plain = static_cast<unsigned char>(c) >= 0x80 ||
                       std::isalnum(static_cast<unsigned char>(c)) || c == ' ' || c == '\n';
    if (!plain) pattern += '\\';
    pattern += c;
  }
  return pattern;
}

}  // namespace rlk
