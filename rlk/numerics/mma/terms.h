// The parts of numbers that matrix instructions work on, as exact integers, and the roundings back
// to f32. The models of single instructions (hopper.h, cdna3.h) are written with these words.
#pragma once

#include <bit>
#include <cstdint>

#include "rlk/core/dtype.h"
#include "rlk/numerics/bf16.h"
#include "rlk/numerics/math.h"

namespace rlk::numerics::mma {

// A finite summand: (-1)^negative * magnitude * 2^(exponent - kTermBits). magnitude < 2^48.
// `exponent` is the one the instruction aligns by: that of the format for an f32, the sum of both
// operands' for a product, which is not renormalised (its magnitude lies below 4 * 2^kTermBits).
// A subnormal has the smallest exponent of its format, -126, and no hidden bit.
struct Term {
  bool negative;
  int exponent;
  std::uint64_t magnitude;
};
inline constexpr int kTermBits = 46;

// Sign, exponent and 24-bit significand of a finite f32.
struct Significand {
  bool negative;
  int exponent;
  std::uint32_t bits;
};

inline Significand significand_of(float x) {
  const std::uint32_t u = std::bit_cast<std::uint32_t>(x);
  const int biased = static_cast<int>(u >> 23 & 0xff);
  const std::uint32_t hidden = biased == 0 ? 0 : 0x800000u;
  return {u >> 31 != 0, (biased == 0 ? 1 : biased) - 127, (u & 0x7fffffu) | hidden};
}

// 24 bits and 24 zeros behind them.
inline Term to_term(float c) {
  const Significand s = significand_of(c);
  return {s.negative, s.exponent, std::uint64_t{s.bits} << 23};
}

// 24 by 24 bits: exact in 48.
inline Term product(bf16 a, bf16 b) {
  const Significand x = significand_of(to_f32(a));
  const Significand y = significand_of(to_f32(b));
  return {x.negative != y.negative, x.exponent + y.exponent, std::uint64_t{x.bits} * y.bits};
}

// The term in units of 2^unit, its magnitude cut toward zero. unit >= exponent - kTermBits, unless
// the term is zero (0 * 2^100 has a large exponent and no say in the alignment).
inline std::int64_t cut(const Term& t, int unit) {
  if (t.magnitude == 0) return 0;
  const int shift = unit - (t.exponent - kTermBits);
  const auto magnitude = static_cast<std::int64_t>(shift > 63 ? 0 : t.magnitude >> shift);
  return t.negative ? -magnitude : magnitude;
}

// sum * 2^unit in units of 2^new_unit, rounded toward minus infinity where bits are lost. (A right
// shift of a signed integer is a floor.)
inline std::int64_t floor_to(std::int64_t sum, int unit, int new_unit) {
  const int shift = new_unit - unit;
  if (shift <= 0) return sum * (std::int64_t{1} << -shift);
  return sum >> (shift > 63 ? 63 : shift);
}

inline std::uint64_t magnitude_of(std::int64_t sum) {
  return sum < 0 ? 0 - static_cast<std::uint64_t>(sum) : static_cast<std::uint64_t>(sum);
}

// Exponent of the leading bit of sum * 2^unit; sum != 0.
inline int leading_exponent(std::int64_t sum, int unit) {
  return static_cast<int>(std::bit_width(magnitude_of(sum))) - 1 + unit;
}

enum class Rounding : std::uint8_t { kTowardZero, kNearestEven };

// The f32 of sum * 2^unit. Subnormals are kept, what reaches 2^128 after rounding is infinity, and
// every zero is +0.
inline float round_to_f32(std::int64_t sum, int unit, Rounding rounding) {
  if (sum == 0) return 0.0f;
  const std::uint64_t magnitude = magnitude_of(sum);
  const int exponent = leading_exponent(sum, unit);
  const int last = exponent < -126 ? -149 : exponent - 23;  // exponent of the last bit kept
  const int shift = last - unit;
  std::uint64_t kept = 0;
  if (shift <= 0) {
    kept = magnitude << -shift;
  } else if (shift < 64) {
    kept = magnitude >> shift;
    const std::uint64_t rest = magnitude & ((std::uint64_t{1} << shift) - 1);
    const std::uint64_t half = std::uint64_t{1} << (shift - 1);
    const bool up = rest > half || (rest == half && (kept & 1) != 0);
    if (rounding == Rounding::kNearestEven && up) ++kept;
  }
  if (kept == 0) return 0.0f;
  // A normal number's leading bit adds one to the exponent field, and so does a carry out of it.
  const std::uint64_t field = exponent > 127 ? 255 : static_cast<std::uint64_t>(last + 149);
  const std::uint64_t bits = (field << 23) + kept;
  const std::uint32_t sign = sum < 0 ? 0x80000000u : 0u;
  const std::uint32_t finite_or_inf =
      bits > 0x7f800000u ? 0x7f800000u : static_cast<std::uint32_t>(bits);
  return std::bit_cast<float>(sign | finite_or_inf);
}

// Which of NaN, +inf and -inf the summands hold. An operand that is NaN, inf * 0, and infinities of
// both signs make the sum NaN.
class NonFinite {
 public:
  void add(float c) {
    if (is_nan(c)) nan_ = true;
    if (c == kInfinity) plus_ = true;
    if (c == -kInfinity) minus_ = true;
  }
  // The f32 product of two bf16 is exact or, where it leaves the range of f32, infinite or tiny.
  // With `overflow`, finite operands whose product reaches 2^128 count as infinity too.
  void add(bf16 a, bf16 b, bool overflow) {
    const float x = to_f32(a);
    const float y = to_f32(b);
    const bool finite = (a.bits & 0x7f80) != 0x7f80 && (b.bits & 0x7f80) != 0x7f80;
    if (!finite || overflow) add(x * y);
  }
  bool any() const { return nan_ || plus_ || minus_; }
  float result(float nan) const {
    if (nan_ || (plus_ && minus_)) return nan;
    return plus_ ? kInfinity : -kInfinity;
  }

 private:
  bool nan_ = false, plus_ = false, minus_ = false;
};

}  // namespace rlk::numerics::mma
