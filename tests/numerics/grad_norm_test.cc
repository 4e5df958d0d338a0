// The gradient norm: exact integers, so order and shards cannot matter.
#include "rlk/numerics/grad_norm.h"

#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "tests/numerics/data.h"
#include "tests/numerics/real.h"

namespace rlk::numerics {
namespace {

NormSum norm_sum(const std::vector<float>& x) {
  MaxExponent e;
  for (const float v : x) e.add(v);
  NormSum sum(e);
  for (const float v : x) sum.add(v);
  return sum;
}

float norm(const std::vector<float>& x) { return norm_sum(x).finish(); }

TEST(GradNorm, FollowsTheFormula) {
  const std::vector<float> x = ill_conditioned(1, 500);
  int e_max = 1;
  for (const float v : x) e_max = std::max(e_max, std::ilogb(v) + 127);
  Real q, term;
  for (const float v : x) {
    const int e = std::ilogb(v) + 127;
    mpfr_set_d(term.get(), std::ldexp(std::fabs(static_cast<double>(v)), 150 - e), MPFR_RNDN);
    mpfr_sqr(term.get(), term.get(), MPFR_RNDN);
    mpfr_mul_2si(term.get(), term.get(), 16 - 2 * (e_max - e), MPFR_RNDN);
    mpfr_floor(term.get(), term.get());
    mpfr_add(q.get(), q.get(), term.get(), MPFR_RNDN);
  }
  const NormSum sum = norm_sum(x);
  EXPECT_EQ(static_cast<double>(sum.q), q.to_double());
  EXPECT_EQ(sum.exponent, e_max);
  EXPECT_EQ(norm(x), static_cast<float>(std::sqrt(std::ldexp(q.to_double(), 2 * e_max - 316))));
}

TEST(GradNorm, IsRight) {
  for (const std::uint32_t seed : {1u, 2u, 3u}) {
    const std::vector<float> x = ill_conditioned(seed, 2000);
    double sum = 0.0;
    for (const float v : x) sum += static_cast<double>(v) * v;
    EXPECT_NEAR(norm(x) / std::sqrt(sum), 1.0, 6e-8);
  }
  EXPECT_EQ(norm({3.0f, -4.0f}), 5.0f);
  EXPECT_EQ(norm({}), 0.0f);
  EXPECT_EQ(norm({0.0f, -0.0f}), 0.0f);
  EXPECT_EQ(norm({0x1p-149f}), 0x1p-149f);
  EXPECT_EQ(norm({0x1.8p-147f, 0x1p-146f}), 0x1.4p-146f);  // 6, 8 and 10 of the smallest
  EXPECT_EQ(norm({0x1.fffffep127f}), 0x1.fffffep127f);
  EXPECT_EQ(norm({0x1.fffffep127f, 0x1.fffffep127f}), kInfinity);
  EXPECT_EQ(norm({1.0f, 0x1p-60f}), 1.0f);
}

TEST(GradNormInvariance, AnyOrderAndAnyShardsGiveTheSameBits) {
  std::vector<float> x = ill_conditioned(4, 3000);
  const float expected = norm(x);
  Random random(5);
  for (int trial = 0; trial < 20; ++trial) {
    random.shuffle(&x);
    const std::size_t cut = random.below(3000);
    MaxExponent low, high;
    for (std::size_t i = 0; i < cut; ++i) low.add(x[i]);
    for (std::size_t i = cut; i < x.size(); ++i) high.add(x[i]);
    high.merge(low);
    NormSum first(high), second(high);
    for (std::size_t i = 0; i < cut; ++i) first.add(x[i]);
    for (std::size_t i = cut; i < x.size(); ++i) second.add(x[i]);
    second.merge(first);
    ASSERT_EQ(bits(second.finish()), bits(expected));
  }
}

TEST(GradNormTwin, ASumOfSquaresInF32DependsOnTheOrder) {
  std::vector<float> x = ill_conditioned(4, 3000);
  const auto plain = [&] {
    float sum = 0.0f;
    for (const float v : x) sum += v * v;
    return std::sqrt(sum);
  };
  const float before = plain();
  Random random(5);
  int differ = 0;
  for (int trial = 0; trial < 20; ++trial) {
    random.shuffle(&x);
    differ += plain() != before;
  }
  EXPECT_GT(differ, 0);
}

TEST(GradNormTwin, FloorsUnderALocalExponentGiveAnotherInteger) {
  // A shard that uses its own largest exponent and is rescaled later floors at another place.
  std::vector<float> small;
  Random random(6);
  for (int i = 0; i < 100; ++i) small.push_back(random.uniform(0x1p-13f, 0x1p-12f));
  const NormSum local = norm_sum(small);
  MaxExponent e;
  e.add(1.0f);
  NormSum global(e);
  for (const float v : small) global.add(v);
  EXPECT_NE(static_cast<double>(local.q >> (2 * (e.value - local.exponent))),
            static_cast<double>(global.q));
}

TEST(GradNorm, FindsNonFiniteElements) {
  for (const float bad : {kInfinity, -kInfinity, quiet_nan()}) {
    MaxExponent e;
    e.add(1.0f);
    EXPECT_TRUE(e.finite());
    e.add(bad);
    EXPECT_FALSE(e.finite());
  }
}

TEST(GradNorm, ClipsOnlyAboveTheLimit) {
  EXPECT_EQ(clip_factor(0.5f, 1.0f), 1.0f);
  EXPECT_EQ(clip_factor(1.0f, 1.0f), 1.0f);
  EXPECT_EQ(clip_factor(3.0f, 1.0f), 1.0f / 3.0f);
}

TEST(Golden, GradNormKeepsItsBits) {
  std::vector<float> results;
  for (std::uint32_t seed = 1; seed < 20; ++seed)
    results.push_back(norm(ill_conditioned(seed, 999)));
  EXPECT_EQ(digest(results), "44efa2c14d5e4011");
}

}  // namespace
}  // namespace rlk::numerics
