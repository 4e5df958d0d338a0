// Accuracy against MPFR, the edges, and the bits of the math primitives.
#include "rlk/numerics/math.h"

#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "rlk/contract/contract.h"
#include "rlk/numerics/adamw.h"
#include "rlk/numerics/bf16.h"
#include "rlk/numerics/f64_math.h"
#include "tests/numerics/data.h"
#include "tests/numerics/real.h"

namespace rlk::numerics {
namespace {

const float kNaN = quiet_nan();

TEST(Primitives, AreTheOnesOfTheContractData) {
  const std::string json = canonical_json(Contract{});
  for (const std::string_view name : kPrimitiveVersions) {
    EXPECT_NE(json.find('"' + std::string(name) + '"'), std::string::npos) << name;
  }
}

TEST(Bf16, RoundsToNearestEven) {
  EXPECT_EQ(to_bf16(1.0f).bits, 0x3f80);
  EXPECT_EQ(to_bf16(1.0f + 0x1p-8f).bits, 0x3f80);             // tie, even below
  EXPECT_EQ(to_bf16(1.0f + 0x1p-8f + 0x1p-23f).bits, 0x3f81);  // just above the tie
  EXPECT_EQ(to_bf16(1.0f + 0x1.8p-7f).bits, 0x3f82);           // tie, even above
  EXPECT_EQ(to_bf16(-0.0f).bits, 0x8000);
  EXPECT_EQ(to_bf16(0x1p-133f).bits, 0x0001);  // smallest subnormal, kept
  EXPECT_EQ(to_bf16(0x1p-134f).bits, 0x0000);  // tie to zero
  EXPECT_EQ(to_bf16(0x1.8p-133f).bits, 0x0002);
  EXPECT_EQ(to_bf16(0x1.fep127f).bits, 0x7f7f);  // largest
  EXPECT_EQ(to_bf16(0x1.fefffep127f).bits, 0x7f7f);
  EXPECT_EQ(to_bf16(0x1.ffp127f).bits, 0x7f80);  // overflow
  EXPECT_EQ(to_bf16(-kInfinity).bits, 0xff80);
}

TEST(Bf16, StoresEveryNanAsOne) {
  for (const std::uint32_t nan : {0x7f800001u, 0x7fffffffu, 0xffc00000u, 0xff800001u}) {
    EXPECT_EQ(to_bf16(std::bit_cast<float>(nan)).bits, 0x7fc0);
  }
}

TEST(Bf16, GoesToF32AndBackUnchanged) {
  for (std::uint32_t u = 0; u < 0x10000u; ++u) {
    const bf16 x{static_cast<std::uint16_t>(u)};
    if (is_nan(to_f32(x))) continue;
    ASSERT_EQ(to_bf16(to_f32(x)).bits, u);
  }
}

// Largest error in ulp over about `count` arguments between low and high, spaced evenly in bits,
// with the exact values from an MPFR function.
template <typename F, typename Exact>
double largest_error(float low, float high, int count, const F& f, const Exact& exact) {
  double largest = 0.0;
  const std::uint32_t first = bits(low);
  const std::uint32_t step = std::max(1u, (bits(high) - first) / static_cast<std::uint32_t>(count));
  Real y;
  for (std::uint64_t u = first; u <= bits(high); u += step) {
    const float x = std::bit_cast<float>(static_cast<std::uint32_t>(u));
    Real argument(x);
    exact(y.get(), argument.get(), MPFR_RNDN);
    largest = std::max(largest, error_ulp_f32(f(x), y));
  }
  return largest;
}

TEST(Exp, IsWithin078Ulp) {
  EXPECT_LT(largest_error(0x1p-30f, 0x1.62e42ep+6f, 100000, numerics::exp, mpfr_exp), 0.7792);
  EXPECT_LT(largest_error(-0x1p-30f, -104.0f, 100000, numerics::exp, mpfr_exp), 0.7792);
  EXPECT_LT(largest_error(-0x1.5p+6f, -104.0f, 100000, numerics::exp, mpfr_exp), 0.7792);
}

TEST(Log, IsWithin0981Ulp) {
  EXPECT_LT(largest_error(0x1p-149f, 0x1.fffffep+127f, 150000, numerics::log, mpfr_log), 0.981);
  EXPECT_LT(largest_error(0.6f, 1.5f, 150000, numerics::log, mpfr_log), 0.981);
}

TEST(Exp2p, IsWithinTwoToMinus18) {
  const auto relative = [](float low, float high) {
    double largest = 0.0;
    Real y;
    for (std::uint64_t u = bits(low); u <= bits(high); u += 4001) {
      const float x = std::bit_cast<float>(static_cast<std::uint32_t>(u));
      Real argument(x);
      mpfr_exp2(y.get(), argument.get(), MPFR_RNDN);
      Real quotient;
      mpfr_d_div(quotient.get(), exp2p(x), y.get(), MPFR_RNDN);
      largest = std::max(largest, std::fabs(quotient.to_double() - 1.0));
    }
    return largest;
  };
  EXPECT_LT(relative(0x1p-20f, 126.0f), 0x1p-18);
  EXPECT_LT(relative(-0x1p-20f, -126.0f), 0x1p-18);
}

TEST(Exp2_64, IsWithinOneUlp) {
  double largest = 0.0;
  Real y;
  for (int i = -200000; i <= 200000; ++i) {
    const double x = 0.51 * i / 200000.0 + 1e-9 * (i % 7);
    Real argument(x);
    mpfr_exp2(y.get(), argument.get(), MPFR_RNDN);
    largest = std::max(largest, error_ulp_f64(exp2_64(x), y));
  }
  EXPECT_LT(largest, 1.0);
  EXPECT_EQ(exp2_64(0.0), 1.0);
  EXPECT_EQ(exp2_64(-0.0), 1.0);
}

TEST(Log1p64, IsWithinOneAndAHalfUlp) {
  double largest = 0.0;
  Random random(1);
  Real y;
  for (int i = 0; i < 300000; ++i) {
    const double high = random.word() * 0x1p-32;
    const double mantissa = 1.0 + high + random.word() * 0x1p-52;
    const bool tiny = random.below(10) == 0;
    const int exponent = static_cast<int>(random.below(tiny ? 1000 : 81)) - (tiny ? 1000 : 60);
    const double x = mantissa * pow2_f64(exponent);
    Real argument(x);
    mpfr_log1p(y.get(), argument.get(), MPFR_RNDN);
    largest = std::max(largest, error_ulp_f64(log1p64(x), y));
  }
  EXPECT_LT(largest, 1.5);
  EXPECT_EQ(bits(log1p64(0.0)), 0u);
  EXPECT_EQ(log1p64(0x1p-1074), 0x1p-1074);
}

TEST(Exp, HasTheContractsEdges) {
  EXPECT_EQ(exp(0.0f), 1.0f);
  EXPECT_EQ(exp(-0.0f), 1.0f);
  EXPECT_EQ(exp(0x1p-149f), 1.0f);
  EXPECT_EQ(exp(0x1.62e42ep+6f), 0x1.ffff08p+127f);
  EXPECT_EQ(exp(0x1.62e43p+6f), kInfinity);
  EXPECT_EQ(exp(0x1.62e432p+6f), kInfinity);
  EXPECT_EQ(exp(kInfinity), kInfinity);
  EXPECT_EQ(bits(exp(-kInfinity)), 0u);
  EXPECT_EQ(bits(exp(-104.0f)), 0u);
  EXPECT_EQ(exp(-0x1.9fe368p+6f), 0x1p-149f);  // the last argument that is not zero
  EXPECT_EQ(bits(exp(-0x1.9fe36ap+6f)), 0u);
  EXPECT_EQ(bits(exp(kNaN)), 0x7fc00000u);
  EXPECT_EQ(bits(exp(std::bit_cast<float>(0xff800001u))), 0x7fc00000u);
}

TEST(Log, HasItsEdges) {
  EXPECT_EQ(bits(log(1.0f)), 0u);
  EXPECT_EQ(log(0.0f), -kInfinity);
  EXPECT_EQ(log(-0.0f), -kInfinity);
  EXPECT_EQ(log(kInfinity), kInfinity);
  EXPECT_EQ(bits(log(-1.0f)), 0x7fc00000u);
  EXPECT_EQ(bits(log(-kInfinity)), 0x7fc00000u);
  EXPECT_EQ(bits(log(kNaN)), 0x7fc00000u);
  EXPECT_FLOAT_EQ(log(0x1p-149f), -103.278929903431851f);
}

TEST(Exp2p, HasTheContractsEdges) {
  EXPECT_EQ(exp2p(0.0f), 1.0f);
  EXPECT_EQ(exp2p(-0.0f), 1.0f);
  EXPECT_EQ(exp2p(-kInfinity), 0x1p-126f);
  EXPECT_EQ(exp2p(-126.0f), 0x1p-126f);
  EXPECT_EQ(exp2p(-1e30f), 0x1p-126f);
  for (int n = -126; n <= 126; ++n) EXPECT_EQ(exp2p(static_cast<float>(n)), pow2_f32(n));
}

// Scaling x by a power of two scales every operation, so one binade stands for all.
TEST(Reciprocal, IsTheDivision) {
  int mismatches = 0;
  for (std::uint32_t u = 0x3f800000u; u <= 0x40000000u; ++u) {
    const float x = std::bit_cast<float>(u);
    mismatches += bits(reciprocal(x)) != bits(1.0f / x) ? 1 : 0;
  }
  EXPECT_EQ(mismatches, 0);
  for (int k = 0; k < 126; ++k) {
    for (const std::uint32_t significand : {0u, 1u, 0x2aaaabu, 0x3fffffu, 0x7ffffeu, 0x7fffffu}) {
      const float x = pow2_f32(k) * std::bit_cast<float>(0x3f800000u | significand);
      EXPECT_EQ(bits(reciprocal(x)), bits(1.0f / x)) << x;
    }
  }
  EXPECT_EQ(reciprocal(0x1p126f), 0x1p-126f);
}

TEST(Sigmoid, AndSiluFollowTheirDefinition) {
  EXPECT_EQ(sigmoid(0.0f), 0.5f);
  EXPECT_EQ(sigmoid(200.0f), 1.0f);
  EXPECT_EQ(sigmoid(-200.0f), 0.0f);
  EXPECT_EQ(bits(silu(-200.0f)), 0x80000000u);
  EXPECT_EQ(silu(200.0f), 200.0f);
  EXPECT_EQ(silu(1.5f), 1.5f * (1.0f / (1.0f + exp(-1.5f))));
  EXPECT_EQ(rsqrt(3.0f), 1.0f / std::sqrt(3.0f));
}

// Results over fixed inputs: every 65,521st bit pattern.
template <typename F>
std::string golden(const F& f) {
  std::vector<decltype(f(0.0f))> y;
  for (std::uint64_t u = 0; u < 0x100000000u; u += 65521) {
    y.push_back(f(std::bit_cast<float>(static_cast<std::uint32_t>(u))));
  }
  return digest(y);
}

// The sign and payload of a NaN made by an operation are the machine's: one NaN for all.
float one_nan(float x) { return is_nan(x) ? quiet_nan() : x; }

TEST(Golden, MathPrimitivesKeepTheirBits) {
  EXPECT_EQ(golden([](float x) { return exp(x); }), "2969b7a50a5ece8b");
  EXPECT_EQ(golden([](float x) { return log(x); }), "835f3ef5d1fd6c3b");
  EXPECT_EQ(golden([](float x) { return x <= 126.0f ? exp2p(x) : 0.0f; }), "b711f1f3aaa9c12c");
  EXPECT_EQ(golden([](float x) { return std::fabs(x) <= 0.501f ? exp2m(x) : 0.0f; }),
            "f5c4a6c725b3f87c");
  EXPECT_EQ(golden([](float x) { return one_nan(rsqrt(x)); }), "d997411e5dde6ae1");
  EXPECT_EQ(golden([](float x) { return one_nan(sigmoid(x)); }), "6e7353b370838df0");
  EXPECT_EQ(golden([](float x) { return one_nan(silu(x)); }), "db2fdcd47a802596");
  EXPECT_EQ(golden([](float x) { return round_bf16(x); }), "f7d5709d6deabbc9");
  EXPECT_EQ(golden([](float x) { return std::fabs(x) <= 0.51f ? exp2_64(x) : 0.0; }),
            "6b1cf4beb701f943");
  EXPECT_EQ(golden([](float x) { return x >= 0.0f && x <= 0x1p21f ? log1p64(x) : 0.0; }),
            "1a64c3b084dc5c37");
}

TEST(MathTwin, AnotherPolynomialOrderGivesOtherBits) {
  const auto estrin = [](float f) {
    const float g = f * f;
    const float low = std::fma(std::fma(0x1.ebf1b4p-3f, f, 0x1.62dfcap-1f), f, 1.0f);
    return std::fma(std::fma(0x1.409104p-7f, f, 0x1.ca9008p-5f), g * f, low);
  };
  int differ = 0;
  Random random(2);
  for (int i = 0; i < 1000; ++i) {
    const float f = random.uniform(-0.5f, 0.5f);
    differ += estrin(f) != exp2p(f);
  }
  EXPECT_GT(differ, 10);
}

TEST(MathTwin, TheLibrarysExpGivesOtherBits) {
  int differ = 0;
  Random random(3);
  for (int i = 0; i < 10000; ++i) {
    const float x = random.uniform(-20.0f, 20.0f);
    differ += std::exp(x) != numerics::exp(x);
  }
  EXPECT_GT(differ, 100);
}

TEST(AdamW, FollowsTheContract) {
  const AdamWConstants c = adamw_constants(0.9, 0.95, 1e-8, 1e-3, 0.1, 3);
  EXPECT_EQ(c.f1, static_cast<float>(1.0 - 0.9));
  EXPECT_EQ(c.h1, static_cast<float>(1.0 - 0.9 * 0.9 * 0.9));
  float w = 0.7f, m = 0.01f, v = 0.002f;
  const float g = -0.3f;
  adamw_step(c, g, &w, &m, &v);
  EXPECT_EQ(m, std::fma(0.9f, 0.01f, c.f1 * g));
  EXPECT_EQ(v, std::fma(0.95f, 0.002f, c.f2 * (g * g)));
  const float u = (m / c.h1) / (std::sqrt(v / c.h2) + 1e-8f);
  EXPECT_EQ(w, std::fma(-1e-3f, std::fma(0.1f, 0.7f, u), 0.7f));
}

TEST(AdamW, FirstStepMovesByTheLearningRate) {
  float w = 1.0f, m = 0.0f, v = 0.0f;
  adamw_step(adamw_constants(0.9, 0.999, 1e-8, 0.01, 0.0, 1), 0.25f, &w, &m, &v);
  EXPECT_NEAR(w, 0.99f, 1e-6f);
}

}  // namespace
}  // namespace rlk::numerics
