// Every f32 argument. The oracle is the C library's f64 function: its error, about 2^-29 of an f32
// ulp, disappears in the bounds; math_test.cc holds samples against MPFR.
#include <cmath>

#include <gtest/gtest.h>

#include "rlk/numerics/bf16.h"
#include "rlk/numerics/math.h"

namespace rlk::numerics {
namespace {

float value(std::uint64_t u) { return std::bit_cast<float>(static_cast<std::uint32_t>(u)); }

double ulp_f32(double exact) {
  int exponent = 0;
  std::frexp(exact, &exponent);
  return pow2_f64(std::max(exponent - 24, -149));
}

// Largest error in ulp where the exact result fits f32.
template <typename F, typename Exact>
double largest_error(std::uint64_t first, std::uint64_t last, const F& f, const Exact& exact) {
  double largest = 0.0;
  for (std::uint64_t u = first; u <= last; ++u) {
    const double y = exact(static_cast<double>(value(u)));
    const double error = std::fabs(static_cast<double>(f(value(u))) - y) / ulp_f32(y);
    if (error > largest) largest = error;
  }
  return largest;
}

std::uint64_t bits_of(float x) { return std::bit_cast<std::uint32_t>(x); }

TEST(Exhaustive, ExpIsWithin078Ulp) {
  const auto exact = [](double x) { return std::exp(x); };
  EXPECT_LT(largest_error(0, bits_of(0x1.62e42ep+6f), numerics::exp, exact), 0.7792);
  EXPECT_LT(largest_error(bits_of(-0.0f), bits_of(-120.0f), numerics::exp, exact), 0.7792);
  for (std::uint64_t u = bits_of(0x1.62e43p+6f); u <= 0x7f800000u; ++u) {
    ASSERT_EQ(exp(value(u)), kInfinity) << u;
  }
  for (std::uint64_t u = bits_of(-120.0f); u <= 0xff800000u; ++u) {
    ASSERT_EQ(bits_of(exp(value(u))), 0u) << u;
  }
}

TEST(Exhaustive, LogIsWithin0981Ulp) {
  const auto exact = [](double x) { return std::log(x); };
  EXPECT_LT(largest_error(1, 0x7f7fffffu, numerics::log, exact), 0.981);
}

TEST(Exhaustive, Exp2pIsWithinTwoToMinus18) {
  double largest = 0.0;
  const auto visit = [&](std::uint64_t first, std::uint64_t last) {
    for (std::uint64_t u = first; u <= last; ++u) {
      const double y = std::exp2(static_cast<double>(value(u)));
      const double error = std::fabs(static_cast<double>(exp2p(value(u))) - y);
      if (error > largest * y) largest = error / y;
    }
  };
  visit(0, bits_of(126.0f));
  visit(bits_of(-0.0f), bits_of(-126.0f));
  EXPECT_LT(largest, 0x1p-18);
}

TEST(Exhaustive, Exp2mIsWithinOneRoundingOfItsPolynomialError) {
  double largest = 0.0;
  for (const std::uint64_t sign : {0x00000000u, 0x80000000u}) {
    for (std::uint64_t u = sign; u <= (sign | bits_of(0.501f)); ++u) {
      const double y = std::exp2(static_cast<double>(value(u)));
      largest = std::max(largest, std::fabs(static_cast<double>(exp2m(value(u))) / y - 1.0));
    }
  }
  EXPECT_LT(largest, 0x1.6p-24);
}

TEST(Exhaustive, Bf16RoundsToTheNearestOfItsNeighbours) {
  for (std::uint64_t u = 0; u < 0x7f7f8000u; ++u) {  // from there on: overflow
    const double x = value(u);
    const std::uint64_t below = u & 0xffff0000u;
    const double low = value(below);
    const double high = value(below + 0x10000u);
    const bool up = x - low > high - x || (x - low == high - x && (below & 0x10000u) != 0);
    const std::uint64_t expected = (up ? below + 0x10000u : below) >> 16;
    ASSERT_EQ(to_bf16(value(u)).bits, expected) << u;
    ASSERT_EQ(to_bf16(value(u | 0x80000000u)).bits, expected | 0x8000u) << u;
  }
}

}  // namespace
}  // namespace rlk::numerics
