// The verifier `countdown`: + - * / (also × ÷), brackets, signs, whole numbers; exact fractions.
#include <algorithm>
#include <cstdint>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "rlk/core/error.h"
#include "rlk/rl/verifier.h"

namespace rlk {
namespace {

using nlohmann::json;
__extension__ using Int128 = __int128;

// A fraction in lowest terms, below > 0. It cannot overflow: with size(x) = max(|above|, below),
// each operation gives size(z) <= 2 size(x) size(y), so an expression that uses every number once
// stays within 2^(count-1) times their product, and check() keeps that below 2^126.
struct Fraction {
  Int128 above = 0;
  Int128 below = 1;
};

constexpr Int128 kLimit = Int128{1} << 126;
constexpr int kMaxDepth = 200;  // of brackets and signs; the parser is recursive

Int128 gcd(Int128 a, Int128 b) {
  while (b != 0) a = std::exchange(b, a % b);
  return a < 0 ? -a : a;
}

Fraction reduced(Int128 above, Int128 below) {
  const Int128 divisor = gcd(above, below);
  if (below < 0) return {-above / divisor, -below / divisor};
  return {above / divisor, below / divisor};
}

// Tokens: the characters + - * / ( ) and, as 'n', a number.
struct Token {
  char kind;
  std::int64_t value = 0;
};

std::optional<std::vector<Token>> tokens_of(std::string_view text) {
  std::vector<Token> tokens;
  while (!text.empty()) {
    const char c = text[0];
    std::size_t size = 1;
    if (c >= '0' && c <= '9') {
      size = std::min(text.find_first_not_of("0123456789"), text.size());
      const std::size_t zeros = std::min(text.find_first_not_of('0'), size);
      if (size - zeros > 18) return std::nullopt;  // no such number is allowed in an answer
      tokens.push_back({'n', std::stoll(std::string(text.substr(0, size)))});
    } else if (std::string_view("+-*/()").find(c) != std::string_view::npos) {
      tokens.push_back({c});
    } else if (text.starts_with("\u00D7")) {
      tokens.push_back({'*'});
      size = 2;
    } else if (text.starts_with("\u00F7")) {
      tokens.push_back({'/'});
      size = 2;
    } else if (std::string_view(" \t\n\r").find(c) == std::string_view::npos) {
      return std::nullopt;
    }
    text.remove_prefix(size);
  }
  return tokens;
}

// Recursive descent. std::nullopt: not an expression, or a division by zero.
class Parser {
 public:
  explicit Parser(const std::vector<Token>& tokens) : tokens_(tokens) {}

  std::optional<Fraction> parse() {
    auto value = sum(0);
    return at_ == tokens_.size() ? value : std::nullopt;
  }

 private:
  bool take(char kind) {
    if (at_ >= tokens_.size() || tokens_[at_].kind != kind) return false;
    ++at_;
    return true;
  }

  std::optional<Fraction> sum(int depth) {
    auto left = product(depth);
    while (left) {
      const bool minus = take('-');
      if (!minus && !take('+')) break;
      const auto right = product(depth);
      if (!right) return std::nullopt;
      const Int128 a = left->above * right->below;
      const Int128 b = right->above * left->below;
      left = reduced(minus ? a - b : a + b, left->below * right->below);
    }
    return left;
  }

  std::optional<Fraction> product(int depth) {
    auto left = factor(depth);
    while (left) {
      const bool divide = take('/');
      if (!divide && !take('*')) break;
      auto right = factor(depth);
      if (!right || (divide && right->above == 0)) return std::nullopt;
      if (divide) std::swap(right->above, right->below);
      left = reduced(left->above * right->above, left->below * right->below);
    }
    return left;
  }

  std::optional<Fraction> factor(int depth) {
    if (depth >= kMaxDepth) return std::nullopt;
    if (take('-')) {
      auto value = factor(depth + 1);
      if (value) value->above = -value->above;
      return value;
    }
    if (take('(')) {
      auto value = sum(depth + 1);
      return take(')') ? value : std::nullopt;
    }
    if (at_ >= tokens_.size() || tokens_[at_].kind != 'n') return std::nullopt;
    return Fraction{tokens_[at_++].value, 1};
  }

  const std::vector<Token>& tokens_;
  std::size_t at_ = 0;
};

struct Task {
  std::vector<std::int64_t> numbers;  // sorted
  std::int64_t target = 0;
};

[[noreturn]] void refuse(const Example& example, const std::string& why) {
  fail(ErrorCode::kFormat,
       "{}: verifier 'countdown' needs an answer {{\"numbers\": [...], \"target\": n}}: {}; got {}",
       example.source, why, example.answer);
}

Task task_of(const Example& example) {
  const json answer = json::parse(example.answer, nullptr, false);
  if (!answer.is_object()) refuse(example, "not an object");
  if (!answer.contains("numbers") || !answer["numbers"].is_array() || answer["numbers"].empty()) {
    refuse(example, "'numbers' must be a list that is not empty");
  }
  if (!answer.contains("target") || !answer["target"].is_number_integer()) {
    refuse(example, "'target' must be a whole number");
  }
  constexpr std::int64_t kMax = 999'999'999'999'999'999;
  Task task;
  Int128 bound = 1;
  for (const json& number : answer["numbers"]) {
    if (!number.is_number_integer() || number < 0 || number > kMax) {
      refuse(example, "each of 'numbers' must be a whole number from 0 to 10^18 - 1");
    }
    task.numbers.push_back(number.get<std::int64_t>());
    const Int128 factor = 2 * std::max<Int128>(task.numbers.back(), 1);
    if (bound > kLimit / factor) refuse(example, "the product of 'numbers' is too large");
    bound *= factor;
  }
  if (answer["target"] < -kMax || answer["target"] > kMax) {
    refuse(example, "'target' must lie within +-(10^18 - 1)");
  }
  task.target = answer["target"].get<std::int64_t>();
  std::sort(task.numbers.begin(), task.numbers.end());
  return task;
}

class Countdown : public Verifier {
 public:
  void check(const Example& example) const override { task_of(example); }

  double score(std::string_view response, const Example& example) override {
    const Task task = task_of(example);
    const auto tokens = tokens_of(response);
    if (!tokens) return 0.0;
    std::vector<std::int64_t> used;
    for (const Token& token : *tokens) {
      if (token.kind == 'n') used.push_back(token.value);
    }
    std::sort(used.begin(), used.end());
    if (used != task.numbers) return 0.0;  // before any arithmetic, see Fraction
    const auto value = Parser(*tokens).parse();
    return value && value->below == 1 && value->above == task.target ? 1.0 : 0.0;
  }
};

}  // namespace

std::unique_ptr<Verifier> countdown_verifier() { return std::make_unique<Countdown>(); }

}  // namespace rlk
