// The CDNA models against their words in f64, and cases worked out by hand.
#include <algorithm>
#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "rlk/numerics/mma/cdna2.h"
#include "rlk/numerics/mma/cdna3.h"
#include "rlk/numerics/mma/columns.h"
#include "rlk/numerics/mma/hopper.h"
#include "rlk/numerics/mma/open_points.h"
#include "tests/numerics/mma/data.h"

namespace rlk::numerics::mma {
namespace {

constexpr float kMax = std::numeric_limits<float>::max();

double floor_at(double x, int last) { return std::ldexp(std::floor(std::ldexp(x, -last)), last); }

// The words of cdna3.h in f64: no sum needs more than 53 bits.
float cdna3_in_f64(float c, const bf16* a, const bf16* b) {
  double special = std::isfinite(c) ? 0.0 : c;
  double terms[8];
  int e = -1000;
  for (int i = 0; i < 8; ++i) {
    const double x = to_f32(a[i]);
    const double y = to_f32(b[i]);
    terms[i] = x * y;
    if (!(std::fabs(terms[i]) < 0x1p128)) special += terms[i] * kInfinity;
    if (terms[i] != 0) e = std::max(e, encoded_exponent(x) + encoded_exponent(y));
  }
  if (std::isnan(special)) return quiet_nan();
  if (special != 0) return static_cast<float>(special);
  double products = 0;
  for (const double t : terms) {
    if (t != 0) products += std::ldexp(std::trunc(std::ldexp(t, 24 - e)), e - 24);
  }
  const int top = std::max(e, encoded_exponent(c));
  const double sum = floor_at(products, top - 32) + floor_at(c, top - 24);
  if (sum == 0) return 0.0f;
  const int leading = std::max(std::ilogb(sum), -126);
  return static_cast<float>(floor_at(sum, leading - 31)) + 0.0f;
}

TEST(Cdna3, EqualsItsWordsInF64OnEveryFamily) {
  for (const Family family : kFamilies) {
    const Inputs in(family, 1, 48, 64, 8);
    const auto got = in.each(cdna3_group);
    EXPECT_EQ(count_different(got, in.each(cdna3_in_f64)), 0) << to_string(family);
  }
}

float cdna3(float c, const Group& g) { return cdna3_group(c, g.a, g.b); }

// 2^23 - 2^23 - 0.5 - 0.25 - 0.125, with 2^23 as accumulator.
const Group kCheckExample({{-0x1p12, 0x1p11}, {-0.5, 1}, {-0.25, 1}, {-0.125, 1}});

// e = 23: products are cut to multiples of 2^-1, which leaves -0.5 of the small ones.
TEST(Cdna3, GivesMinusOneHalfInTheCheckExample) { EXPECT_EQ(cdna3(0x1p23f, kCheckExample), -0.5f); }

// 1 + 2^-24 + 2^-40: P is floored to a multiple of 2^-32, which drops 2^-40 and leaves a tie, so 1.
// With all signs turned the floor adds to the magnitude: beyond the tie, so -(1 + 2^-23).
TEST(Cdna3, IsNotSymmetricInTheSign) {
  EXPECT_EQ(cdna3(1.0f, {{0x1p-12, 0x1p-12}, {0x1p-20, 0x1p-20}}), 1.0f);
  EXPECT_EQ(cdna3(-1.0f, {{-0x1p-12, 0x1p-12}, {-0x1p-20, 0x1p-20}}), -(1.0f + 0x1p-23f));
}

// 1 - 1 + c with |c| = 2^-30: E = 0, c is floored to a multiple of 2^-24.
TEST(Cdna3, FloorsASmallAccumulator) {
  EXPECT_EQ(bits(cdna3(0x1p-30f, {{1, 1}, {-1, 1}})), 0u);
  EXPECT_EQ(cdna3(-0x1p-30f, {{1, 1}, {-1, 1}}), -0x1p-24f);
}

// 1 + 3 * 2^-25 lies above the middle of 1 and 1 + 2^-23. (Hopper rounds it toward zero.)
TEST(Cdna3, RoundsToNearest) {
  const Group g({{0x1p-12, 0x1p-12}, {0x1p-12, 0x1p-13}});
  EXPECT_EQ(cdna3(1.0f, g), 1.0f + 0x1p-23f);
  EXPECT_EQ(hopper_group(1.0f, g.a, g.b), 1.0f);
}

TEST(Cdna3, KeepsSubnormals) {
  EXPECT_EQ(cdna3(0.0f, {{0x1p-70, 0x1p-70}}), 0x1p-140f);
  EXPECT_EQ(cdna3(0x1p-149f, {}), 0x1p-149f);
  EXPECT_EQ(cdna3(0.0f, {{0x1p-133, 0x1p127}}), 0x1p-6f);
  // 2^-150 + 2^-151 rounds up to the smallest number, 2^-150 alone is a tie and rounds to zero.
  EXPECT_EQ(cdna3(0.0f, {{0x1p-75, 0x1p-75}, {0x1p-75, 0x1p-76}}), 0x1p-149f);
  EXPECT_EQ(bits(cdna3(0.0f, {{-0x1p-75, 0x1p-75}})), 0u);
}

// On Hopper 2^128 - 2^128 is 0; here each product is infinite by itself.
TEST(Cdna3, AProductOf2To128IsInfinite) {
  EXPECT_EQ(cdna3(0.0f, {{0x1p64, 0x1p64}, {-0x1p64, 0x1p63}}), kInfinity);
  EXPECT_EQ(bits(cdna3(0.0f, {{0x1p64, 0x1p64}, {-0x1p64, 0x1p64}})), 0x7fc00000u);
  EXPECT_EQ(cdna3(0.0f, {{0x1p64, 0x1p63}, {-0x1p64, 0x1p62}}), 0x1p126f);
  EXPECT_EQ(cdna3(kMax, {{0x1p52, 0x1p51}}), kInfinity);  // half way to 2^128: even is infinity
  EXPECT_EQ(bits(cdna3(0.0f, {{kInfinity, 0}})), 0x7fc00000u);
}

double flush(double x) { return std::fabs(x) < 0x1p-126 ? std::copysign(0.0, x) : x; }
double operand(double x) { return std::fabs(x) < 0x1p-126 && x != 0 ? 0.0 : x; }
// One IEEE f32 operation: f64 has more than twice the bits, so rounding twice is rounding once.
double rounded(double x) { return flush(static_cast<double>(static_cast<float>(x))); }

float cdna2_in_f64(float c, const bf16* a, const bf16* b) {
  double p[4];
  for (int i = 0; i < 4; ++i) p[i] = rounded(operand(to_f32(a[i])) * operand(to_f32(b[i])));
  const double s = rounded(rounded(p[0] + p[1]) + rounded(p[2] + p[3]));
  const auto sum = static_cast<float>(rounded(operand(c) + s));
  return std::isnan(sum) ? quiet_nan() : sum;
}

TEST(Cdna2, EqualsItsWordsInF64OnEveryFamily) {
  for (const Family family : kFamilies) {
    const Inputs in(family, 1, 48, 64, 4);
    const auto got = in.each(cdna2_group);
    EXPECT_EQ(count_different(got, in.each(cdna2_in_f64)), 0) << to_string(family);
  }
}

float cdna2(float c, const Group& g) { return cdna2_group(c, g.a, g.b); }

// Quads: -2^23 - 0.5 is a tie that rounds to -2^23, and so does -2^23 - 0.375, so 0 is left.
// Pairs: 2^23 + (-2^23 - 0.5 -> -2^23) = 0, then -0.25 - 0.125 = -0.375 is added to it.
TEST(Cdna2, QuadsAndPairsDifferInTheCheckExample) {
  EXPECT_EQ(bits(cdna2(0x1p23f, kCheckExample)), 0u);
  const float first = cdna2_pair_group(0x1p23f, kCheckExample.a, kCheckExample.b);
  EXPECT_EQ(first, 0.0f);
  EXPECT_EQ(cdna2_pair_group(first, kCheckExample.a + 2, kCheckExample.b + 2), -0.375f);
}

// 2^24 + 1 is a tie that rounds to 2^24: (2^24 + 1) + (1 + 1) = 2^24 + 2, a left fold loses all
// three ones, and exactly it is 2^24 + 3, which rounds to 2^24 + 4.
TEST(Cdna2, AddsProductsByPairs) {
  EXPECT_EQ(cdna2(0.0f, {{0x1p12, 0x1p12}, {1, 1}, {1, 1}, {1, 1}}), 0x1p24f + 2);
}

TEST(Cdna2, FlushesOperandsAndResults) {
  EXPECT_EQ(bits(cdna2(0.0f, {{0x1p-133, 0x1p127}})), 0u);  // operand: 2^-6 without flushing
  EXPECT_EQ(bits(cdna2(0x1p-127f, {})), 0u);                // accumulator
  EXPECT_EQ(bits(cdna2(-0x1p-127f, {})), 0u);
  EXPECT_EQ(bits(cdna2(0.0f, {{0x1p-64, 0x1p-63}})), 0u);  // product: 2^-127
  EXPECT_EQ(cdna2(0.0f, {{0x1p-63, 0x1p-63}}), 0x1p-126f);
  // Sums: 1.5 * 2^-126 - 2^-126 = 2^-127, in each of the three places.
  EXPECT_EQ(bits(cdna2(0.0f, {{0x1.8p-63, 0x1p-63}, {-0x1p-63, 0x1p-63}})), 0u);
  EXPECT_EQ(bits(cdna2(0.0f, {{0x1.8p-63, 0x1p-63}, {0, 0}, {-0x1p-63, 0x1p-63}})), 0u);
  EXPECT_EQ(bits(cdna2(0x1.8p-126f, {{-0x1p-63, 0x1p-63}})), 0u);
}

// A flushed result keeps its sign: -0 + -0 = -0. Sums of the contract end with + (+0).
TEST(Cdna2, AnOpenChainMayBeMinusZero) {
  Group g({{-0x1p-64, 0x1p-63}, {-0.0, 1}, {-0.0, 1}, {-0.0, 1}});
  EXPECT_EQ(bits(cdna2(-0.0f, g)), 0x80000000u);
  EXPECT_EQ(bits(cdna2(0.0f, g)), 0u);
}

TEST(Cdna2, FollowsIeeeAtInfinity) {
  EXPECT_EQ(cdna2(0.0f, {{0x1p64, 0x1p64}}), kInfinity);
  EXPECT_EQ(bits(cdna2(0.0f, {{0x1p64, 0x1p64}, {-0x1p64, 0x1p64}})), 0x7fc00000u);
  EXPECT_EQ(bits(cdna2(0.0f, {{kInfinity, 0}})), 0x7fc00000u);
  EXPECT_EQ(cdna2(-kInfinity, {{0x1p100, 0x1p20}}), -kInfinity);
}

// The goldens that were worked out by hand, with the scalar models and with vectors.
TEST(OpenPoints, HaveTheAnswersThatWereDerived) {
  for (const OpenPoint& point : open_points()) {
    bf16 a[8], b[8];
    fill_operands(point, 8, a, b);
    const bool cdna3 = point.profile == Profile::kCdna3;
    const float scalar = cdna3 ? cdna3_group(point.c, a, b) : cdna2_group(point.c, a, b);
    EXPECT_EQ(bits(scalar), point.model) << to_string(point.profile) << " " << point.question;
    for (const ColumnsIsa* isa : columns_isas(point.profile)) {
      const int k = cdna3 ? 8 : 4;
      std::vector<float> acc(static_cast<std::size_t>(isa->panel), point.c), x, y;
      for (int i = 0; i < k; ++i) {
        x.push_back(to_f32(a[i]));
        y.insert(y.end(), static_cast<std::size_t>(isa->panel), to_f32(b[i]));
      }
      isa->chains({acc.data(), isa->panel, x.data(), k, 1, y.data(), isa->panel, 1, k});
      for (const float result : acc) {
        EXPECT_EQ(bits(result), point.model) << isa->name << " " << point.question;
      }
    }
  }
}

TEST(AmdTwin, TheThreeInstructionsDifferOnNormalData) {
  const Inputs in(Family::kNormal, 4, 32, 32, 16);
  const auto hopper = in.each(hopper_group);
  const auto cdna3 = in.each([](float c, const bf16* a, const bf16* b) {
    return cdna3_group(cdna3_group(c, a, b), a + 8, b + 8);
  });
  const auto cdna2 = in.each([](float c, const bf16* a, const bf16* b) {
    for (int k = 0; k < 16; k += 4) c = cdna2_group(c, a + k, b + k);
    return c;
  });
  EXPECT_GT(count_different(hopper, cdna3), 0);
  EXPECT_GT(count_different(hopper, cdna2), 0);
  EXPECT_GT(count_different(cdna3, cdna2), 0);
}

// A group takes part as a whole: its order is free on CDNA3, the pairs of CDNA2 are not.
TEST(AmdInvariance, TheOrderInsideAGroupIsFreeOnCdna3) {
  for (const Family family : kFamilies) {
    Inputs in(family, 2, 32, 32, 8);
    const auto before = in.each(cdna3_group);
    for (std::size_t i = 0; i < in.a.size(); i += 8) std::reverse(&in.a[i], &in.a[i] + 8);
    for (std::size_t i = 0; i < in.b.size(); i += 8) std::reverse(&in.b[i], &in.b[i] + 8);
    EXPECT_EQ(count_different(in.each(cdna3_group), before), 0) << to_string(family);
  }
}

TEST(AmdTwin, OtherPairsGiveOtherBitsOnCdna2) {
  Inputs in(Family::kNormal, 2, 32, 32, 4);
  const auto before = in.each(cdna2_group);
  for (std::size_t i = 1; i < in.a.size(); i += 4) std::swap(in.a[i], in.a[i + 1]);
  for (std::size_t i = 1; i < in.b.size(); i += 4) std::swap(in.b[i], in.b[i + 1]);
  EXPECT_GT(count_different(in.each(cdna2_group), before), 0);
}

}  // namespace
}  // namespace rlk::numerics::mma
