// The Hopper model against its words in f64, cases worked out by hand, and models that it is not.
#include "rlk/numerics/mma/hopper.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "rlk/numerics/mma/mac.h"
#include "tests/numerics/mma/data.h"

namespace rlk::numerics::mma {
namespace {

constexpr float kMax = std::numeric_limits<float>::max();
constexpr float kTiny = 0x1p-149f;

// The words of hopper.h in f64: products of bf16, cut terms as whole numbers below 2^27, their sum
// and the result before rounding are all exact there.
float in_f64(float c, const bf16* a, const bf16* b, int group, int fraction_bits, int floor) {
  double plain = c;
  std::vector<double> terms = {c};
  std::vector<int> exponents = {encoded_exponent(c)};
  for (int i = 0; i < group; ++i) {
    const double x = to_f32(a[i]);
    const double y = to_f32(b[i]);
    terms.push_back(x * y);
    exponents.push_back(encoded_exponent(x) + encoded_exponent(y));
  }
  for (const double t : terms) {
    if (!std::isfinite(t)) plain += t;
  }
  if (std::isnan(plain)) return std::bit_cast<float>(0x7fffffffu);
  if (std::isinf(plain)) return static_cast<float>(plain);

  int e = floor;
  for (std::size_t i = 0; i < terms.size(); ++i) {
    if (terms[i] != 0) e = std::max(e, exponents[i]);
  }
  double sum = 0;
  for (const double t : terms) sum += std::trunc(std::ldexp(t, fraction_bits - e));
  const double exact = std::ldexp(sum, e - fraction_bits);
  if (exact == 0) return 0.0f;
  const int last = std::max(std::ilogb(exact) - 23, -149);
  const double cut = std::ldexp(std::trunc(std::ldexp(exact, -last)), last);
  if (std::fabs(cut) >= 0x1p128) return std::copysign(kInfinity, static_cast<float>(cut));
  return static_cast<float>(cut) + 0.0f;
}

TEST(Hopper, EqualsItsWordsInF64OnEveryFamily) {
  for (const Family family : kFamilies) {
    const Inputs in(family, 1, 48, 64, 16);
    const auto got = in.each(hopper_group);
    const auto want = in.each(
        [](float c, const bf16* a, const bf16* b) { return in_f64(c, a, b, 16, 25, -133); });
    EXPECT_EQ(count_different(got, want), 0) << to_string(family);
  }
}

float run(float c, const Group& g) { return hopper_group(c, g.a, g.b); }

// E = 23, so terms are cut to multiples of 2^-2: 0.125 goes.
TEST(Hopper, KeepsTwoMoreBitsThanTheFractionOfF32) {
  const Group g({{-0x1p12, 0x1p11}, {-0.5, 1}, {-0.25, 1}, {-0.125, 1}});
  EXPECT_EQ(run(0x1p23f, g), -0.75f);
}

// 1 + 15 * 2^-24 lies half way between 1 + 7 * 2^-23 and 1 + 8 * 2^-23; nearest even is the upper.
TEST(Hopper, RoundsTowardZeroOnBothSides) {
  Group g({});
  for (int i = 0; i < 15; ++i) g.a[i] = to_bf16(0x1p-24f), g.b[i] = to_bf16(1.0f);
  EXPECT_EQ(run(1.0f, g), 1.0f + 7 * 0x1p-23f);
  for (int i = 0; i < 15; ++i) g.b[i] = to_bf16(-1.0f);
  EXPECT_EQ(run(-1.0f, g), -(1.0f + 7 * 0x1p-23f));
}

// 1.5 * 1.5 = 2.25 counts with exponent 0, so 2^-25 is just kept. As an accumulator 2.25 has
// exponent 1, and 2^-25 is cut.
TEST(Hopper, DoesNotRenormaliseProducts) {
  EXPECT_EQ(run(0.0f, {{1.5, 1.5}, {-1.5, 1.5}, {0x1p-12, 0x1p-13}}), 0x1p-25f);
  EXPECT_EQ(bits(run(-2.25f, {{1.5, 1.5}, {0x1p-12, 0x1p-13}})), 0u);
}

// 2^-133 * 2^127 = 2^-6 with exponent -126 + 127 = 1: 2^-25 is cut, 2^-24 is kept. Were the operand
// normalised, the exponent would be -6 and both would stay.
TEST(Hopper, ASubnormalOperandHasTheSmallestExponent) {
  EXPECT_EQ(run(0.0f, {{0x1p-133, 0x1p127}, {0x1p-12, 0x1p-13}}), 0x1p-6f);
  EXPECT_EQ(run(0.0f, {{0x1p-133, 0x1p127}, {0x1p-12, 0x1p-12}}), 0x1p-6f + 0x1p-24f);
}

TEST(Hopper, AZeroProductHasNoSayInTheAlignment) {
  EXPECT_EQ(run(0.0f, {{0.0, 0x1p127}, {0x1p-15, 0x1p-15}}), 0x1p-30f);
}

TEST(Hopper, KeepsSubnormalResults) {
  EXPECT_EQ(run(0.0f, {{0x1p-70, 0x1p-70}}), 0x1p-140f);
  EXPECT_EQ(run(kTiny, {}), kTiny);
  EXPECT_EQ(run(-3 * kTiny, {{0x1p-75, 0x1p-74}}), -2 * kTiny);
  // Two halves of the smallest number: no term is flushed before the sum.
  EXPECT_EQ(run(0.0f, {{0x1p-75, 0x1p-75}, {0x1p-75, 0x1p-75}}), kTiny);
}

// q = 2^-145 (1 + 2^-7)^2 = 2^-145 + 2^-151 + 2^-159, twice, and 255 * 2^-158 add up to
// 2^-144 + 2^-149. All exponents are below -133, so the floor decides: terms are cut to multiples
// of 2^-158, both q lose their 2^-159, and the sum falls short of the last step of 2^-149.
TEST(Hopper, TheLeastExponentIsMinus133) {
  const double odd = 1 + 0x1p-7;
  const Group g(
      {{odd * 0x1p-72, odd * 0x1p-73}, {odd * 0x1p-72, odd * 0x1p-73}, {255 * 0x1p-80, 0x1p-78}});
  EXPECT_EQ(run(0.0f, g), 0x1p-144f);
  EXPECT_EQ(fused_group({16, 25, -134}, 0.0f, g.a, g.b), 0x1p-144f + kTiny);
}

TEST(Hopper, EveryZeroIsPositive) {
  EXPECT_EQ(bits(run(-0.0f, {{-0.0, 1}, {0.0, -1}})), 0u);
  EXPECT_EQ(bits(run(0.0f, {{-0x1p-75, 0x1p-75}})), 0u);  // -2^-150, rounded toward zero
  EXPECT_EQ(bits(run(1.0f, {{-1, 1}})), 0u);
  // 2^200 - 2^200 + 1 + 1: the ones lie below 2^(200 - 25).
  EXPECT_EQ(bits(run(1.0f, {{0x1p100, 0x1p100}, {-0x1p100, 0x1p100}, {1, 1}})), 0u);
}

// max + 2^103 is half way to 2^128: nearest would be infinity, toward zero is max.
TEST(Hopper, OverflowsAt2To128Only) {
  EXPECT_EQ(run(kMax, {{0x1p52, 0x1p51}}), kMax);
  EXPECT_EQ(run(kMax, {{0x1p52, 0x1p52}}), kInfinity);
  EXPECT_EQ(run(-kMax, {{-0x1p52, 0x1p52}}), -kInfinity);
  EXPECT_EQ(run(0.0f, {{0x1p64, 0x1p63}, {0x1p64, 0x1p63}}), kInfinity);
  EXPECT_EQ(run(0.0f, {{0x1p64, 0x1p64}, {-0x1p64, 0x1p63}}), 0x1p127f);
}

TEST(Hopper, NaNIsAllOnesAndInfinityWinsOverNumbers) {
  const double inf = kInfinity;
  EXPECT_EQ(bits(run(quiet_nan(), {})), 0x7fffffffu);
  EXPECT_EQ(bits(run(0.0f, {{quiet_nan(), 0}})), 0x7fffffffu);
  EXPECT_EQ(bits(run(0.0f, {{inf, 0}})), 0x7fffffffu);
  EXPECT_EQ(bits(run(0.0f, {{inf, 1}, {inf, -1}})), 0x7fffffffu);
  EXPECT_EQ(bits(run(-kInfinity, {{inf, 1}})), 0x7fffffffu);
  EXPECT_EQ(run(-kMax, {{inf, -inf}}), -kInfinity);
  EXPECT_EQ(run(kInfinity, {{-0x1p100, 0x1p100}}), kInfinity);
}

// Element i of a line of 16 moves to place order[i].
std::vector<bf16> permuted(const std::vector<bf16>& x, const std::vector<int>& order) {
  std::vector<bf16> y(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) y[i / 16 * 16 + order[i % 16]] = x[i];
  return y;
}

TEST(HopperInvariance, TheOrderInsideAGroupIsFree) {
  Random random(3);
  std::vector<int> order(16);
  for (int i = 0; i < 16; ++i) order[i] = i;
  for (const Family family : kFamilies) {
    Inputs in(family, 2, 32, 32, 16);
    const auto before = in.each(hopper_group);
    random.shuffle(&order);
    in.a = permuted(in.a, order);
    in.b = permuted(in.b, order);
    EXPECT_EQ(count_different(in.each(hopper_group), before), 0) << to_string(family);
  }
}

float chain_of(float c, const bf16* a, const bf16* b, std::int64_t k) {
  return chain(Sm90Mac(), c, Strided{a}, Strided{b}, 0, k);
}

TEST(HopperTwin, AnotherOrderOfGroupsGivesOtherBits) {
  for (const Family family :
       {Family::kNormal, Family::kLlm, Family::kExponents20, Family::kCancellingPairs}) {
    const Inputs in(family, 3, 16, 16, 32);
    const auto up =
        in.each([](float c, const bf16* a, const bf16* b) { return chain_of(c, a, b, 32); });
    const auto down = in.each([](float c, const bf16* a, const bf16* b) {
      return hopper_group(hopper_group(c, a + 16, b + 16), a, b);
    });
    EXPECT_GT(count_different(up, down), 0) << to_string(family);
  }
}

// Shares that a chip's results showed on normal data: F = 24 8.4 %, F = 26 2.9 %, two groups of 8
// 16.7 %, a chain of fma 48.9 % of the outputs.
TEST(HopperTwin, OtherModelsGiveOtherBitsOnNormalData) {
  const Inputs in(Family::kNormal, 4, 64, 64, 16);
  const auto hopper = in.each(hopper_group);
  const auto share = [&](auto model) {
    return 100.0 * static_cast<double>(count_different(in.each(model), hopper)) / 4096;
  };
  EXPECT_NEAR(share([](float c, const bf16* a, const bf16* b) {
                return fused_group({16, 24, -133}, c, a, b);
              }),
              8.4, 3);
  EXPECT_NEAR(share([](float c, const bf16* a, const bf16* b) {
                return fused_group({16, 26, -133}, c, a, b);
              }),
              2.9, 2);
  EXPECT_NEAR(share([](float c, const bf16* a, const bf16* b) {
                const FusedModel half{8, 25, -133};
                return fused_group(half, fused_group(half, c, a, b), a + 8, b + 8);
              }),
              16.7, 5);
  EXPECT_NEAR(share([](float c, const bf16* a, const bf16* b) {
                return chain(PortableMac(), c, Strided{a}, Strided{b}, 0, 16);
              }),
              48.9, 10);
}

TEST(HopperTwin, AnotherFloorGivesOtherBitsInDeepUnderflow) {
  const Inputs in(Family::kDeepUnderflow, 5, 256, 256, 16);
  const auto hopper = in.each(hopper_group);
  for (const int floor : {-131, -132, -134, -999}) {
    const auto other = in.each([&](float c, const bf16* a, const bf16* b) {
      return fused_group({16, 25, floor}, c, a, b);
    });
    EXPECT_GT(count_different(other, hopper), 0) << floor;
  }
}

}  // namespace
}  // namespace rlk::numerics::mma
