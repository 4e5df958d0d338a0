// The verifier `last_number`. Numbers are compared exactly, as text in a canonical form.
//
// A number is digits, with commas between groups of three or not, with a decimal part or not; a
// fraction a/b (no spaces) or \frac{a}{b}. A minus sign counts when what stands before it is not a
// letter, a digit or a closing bracket; a $ may stand between sign and digits. A period that no
// digit follows is the end of a sentence. Exponents and mixed numbers are not understood. Fractions
// with more than 18 digits above or below the line are not reduced.
#include <cctype>
#include <cstdint>
#include <numeric>
#include <optional>
#include <string>

#include "rlk/core/error.h"
#include "rlk/rl/verifier.h"

namespace rlk {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

std::string without_leading_zeros(const std::string& digits) {
  const std::size_t at = digits.find_first_not_of('0');
  return at == std::string::npos ? "0" : digits.substr(at);
}

std::string with_sign(bool negative, const std::string& magnitude) {
  return negative && magnitude != "0" ? "-" + magnitude : magnitude;
}

std::string canonical_decimal(const std::string& whole, std::string fraction) {
  while (!fraction.empty() && fraction.back() == '0') fraction.pop_back();
  return without_leading_zeros(whole) + (fraction.empty() ? "" : "." + fraction);
}

// "3/4" as "0.75" where the decimal expansion ends, else reduced: "2/6" as "1/3".
std::string canonical_fraction(const std::string& above, const std::string& below) {
  const std::string a = without_leading_zeros(above);
  const std::string b = without_leading_zeros(below);
  if (a.size() > 18 || b.size() > 18) return a + "/" + b;
  std::uint64_t p = std::stoull(a);
  std::uint64_t q = std::stoull(b);
  const std::uint64_t divisor = std::gcd(p, q);
  p /= divisor;
  q /= divisor;
  std::uint64_t twos_and_fives = q;
  while (twos_and_fives % 2 == 0) twos_and_fives /= 2;
  while (twos_and_fives % 5 == 0) twos_and_fives /= 5;
  if (twos_and_fives != 1) return std::to_string(p) + "/" + std::to_string(q);
  std::string fraction;
  for (std::uint64_t rest = p % q; rest != 0; rest = rest * 10 % q) {  // rest * 10 < 10^19
    fraction += static_cast<char>('0' + rest * 10 / q);
  }
  return canonical_decimal(std::to_string(p / q), fraction);
}

class Scanner {
 public:
  explicit Scanner(std::string_view text) : text_(text) {}

  std::optional<std::string> last_number() {
    std::optional<std::string> last;
    while (at_ < text_.size()) {
      const std::size_t begin = at_;
      if (auto number = take_number()) {
        last = std::move(number);
      } else {
        at_ = begin + 1;
      }
    }
    return last;
  }

 private:
  bool digit_at(std::size_t i) const { return i < text_.size() && is_digit(text_[i]); }

  bool take(std::string_view word) {
    if (!text_.substr(at_).starts_with(word)) return false;
    at_ += word.size();
    return true;
  }

  std::string take_digits() {
    const std::size_t begin = at_;
    while (digit_at(at_)) ++at_;
    return std::string(text_.substr(begin, at_ - begin));
  }

  bool take_sign() {
    if (at_ > 0) {
      const char before = text_[at_ - 1];
      if (std::isalnum(static_cast<unsigned char>(before)) || before == ')' || before == ']' ||
          before == '}') {
        return false;
      }
    }
    if (!take("-") && !take("\u2212")) return false;
    if (!take("\\$")) take("$");
    return true;
  }

  // ",123" after one to three digits, as often as it comes.
  std::string take_whole() {
    std::string digits = take_digits();
    if (digits.size() > 3) return digits;
    while (at_ < text_.size() && text_[at_] == ',' && digit_at(at_ + 1) && digit_at(at_ + 2) &&
           digit_at(at_ + 3) && !digit_at(at_ + 4)) {
      ++at_;
      digits += take_digits();
    }
    return digits;
  }

  std::optional<std::string> take_latex_fraction() {
    if (!take("\\frac{") && !take("\\dfrac{") && !take("\\tfrac{")) return std::nullopt;
    const bool negative = take("-");
    const std::string above = take_digits();
    if (above.empty() || !take("}{")) return std::nullopt;
    const std::string below = take_digits();
    if (below.empty() || without_leading_zeros(below) == "0" || !take("}")) return std::nullopt;
    return with_sign(negative, canonical_fraction(above, below));
  }

  std::optional<std::string> take_number() {
    const bool negative = take_sign();
    if (auto fraction = take_latex_fraction()) {
      return negative ? with_sign((*fraction)[0] != '-', fraction->substr((*fraction)[0] == '-'))
                      : *fraction;
    }
    std::string whole = take_whole();
    if (whole.empty() && !(at_ < text_.size() && text_[at_] == '.' && digit_at(at_ + 1))) {
      return std::nullopt;
    }
    if (at_ < text_.size() && text_[at_] == '.' && digit_at(at_ + 1)) {
      ++at_;
      return with_sign(negative, canonical_decimal(whole, take_digits()));
    }
    if (at_ < text_.size() && text_[at_] == '/' && digit_at(at_ + 1)) {
      const std::size_t slash = at_++;
      const std::string below = take_digits();
      if (without_leading_zeros(below) != "0") {
        return with_sign(negative, canonical_fraction(whole, below));
      }
      at_ = slash;
    }
    return with_sign(negative, without_leading_zeros(whole));
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

class LastNumber : public Verifier {
 public:
  void check(const Example& example) const override {
    if (!Scanner(example.answer).last_number()) {
      fail(ErrorCode::kFormat, "{}: verifier 'last_number' needs a number in the answer, got '{}'",
           example.source, example.answer);
    }
  }
  double score(std::string_view response, const Example& example) override {
    const auto got = Scanner(response).last_number();
    return got && got == Scanner(example.answer).last_number() ? 1.0 : 0.0;
  }
};

}  // namespace

std::unique_ptr<Verifier> last_number_verifier() { return std::make_unique<LastNumber>(); }

}  // namespace rlk
