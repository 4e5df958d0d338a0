// Every entry is the f32 nearest to the real cosine or sine.
#include "rlk/numerics/rope_table.h"

#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "tests/numerics/data.h"
#include "tests/numerics/real.h"

namespace rlk::numerics {
namespace {

struct Table {
  std::vector<float> cos, sin;
};

Table make_table(double theta, std::int64_t head_dim, std::int64_t first, std::int64_t count) {
  const auto size = static_cast<std::size_t>(count * head_dim / 2);
  Table table{std::vector<float>(size), std::vector<float>(size)};
  rope_table(theta, head_dim, first, count, table.cos.data(), table.sin.data());
  return table;
}

void expect_nearest(double theta, std::int64_t head_dim, std::int64_t position) {
  const Table table = make_table(theta, head_dim, position, 1);
  Real frequency, power, angle, value;
  for (std::int64_t i = 0; i < head_dim / 2; ++i) {
    mpfr_set_si(power.get(), -2 * i, MPFR_RNDN);
    mpfr_div_si(power.get(), power.get(), head_dim, MPFR_RNDN);
    mpfr_set_d(frequency.get(), theta, MPFR_RNDN);
    mpfr_pow(frequency.get(), frequency.get(), power.get(), MPFR_RNDN);
    mpfr_mul_si(angle.get(), frequency.get(), position, MPFR_RNDN);
    const auto index = static_cast<std::size_t>(i);
    mpfr_cos(value.get(), angle.get(), MPFR_RNDN);
    ASSERT_EQ(bits(table.cos[index]), bits(value.to_float()))
        << theta << ' ' << position << ' ' << i;
    mpfr_sin(value.get(), angle.get(), MPFR_RNDN);
    ASSERT_EQ(bits(table.sin[index]), bits(value.to_float()))
        << theta << ' ' << position << ' ' << i;
  }
}

TEST(RopeTable, IsCorrectlyRoundedForUsualModels) {
  Random random(1);
  for (const double theta : {1e4, 5e5, 1e6, 1e7}) {
    for (const std::int64_t head_dim : {16, 64, 128}) {
      for (const std::int64_t position : {1, 2, 4095, 4096, 40959, (1 << 22) - 1}) {
        expect_nearest(theta, head_dim, position);
      }
      for (int i = 0; i < 10; ++i) expect_nearest(theta, head_dim, random.below(1u << 22));
    }
  }
}

TEST(RopeTable, IsCorrectlyRoundedForAnyThetaAndHeadSize) {
  Random random(2);
  for (int i = 0; i < 150; ++i) {
    const double theta = 100.0 * std::pow(10.0, 7.0 * uniform_f32(random.word()));
    expect_nearest(theta, 2 * (1 + random.below(64)), random.below(1u << (1 + random.below(22))));
  }
}

// Powers of two make angles that are f32 numbers, next to midpoints of the result.
TEST(RopeTable, IsCorrectlyRoundedWhereAnglesAreShort) {
  for (const double theta : {0x1p10, 0x1p20, 0x1p24, 0x1p30, 1e8}) {
    for (std::int64_t position = 1; position < (1 << 22); position *= 2) {
      expect_nearest(theta, 8, position);
    }
  }
}

TEST(RopeTable, StartsWithNoRotation) {
  const Table table = make_table(1e6, 64, 0, 1);
  for (const float c : table.cos) EXPECT_EQ(c, 1.0f);
  for (const float s : table.sin) EXPECT_EQ(bits(s), 0u);
}

TEST(RopeTableInvariance, ARowIsTheSameFromAnyFirstPosition) {
  const Table whole = make_table(1e6, 32, 0, 300);
  const Table part = make_table(1e6, 32, 177, 20);
  for (std::size_t i = 0; i < part.cos.size(); ++i) {
    ASSERT_EQ(bits(part.cos[i]), bits(whole.cos[177 * 16 + i]));
    ASSERT_EQ(bits(part.sin[i]), bits(whole.sin[177 * 16 + i]));
  }
}

TEST(RopeTableTwin, AnglesRoundedToF32GiveOtherBits) {
  const Table table = make_table(1e4, 64, 1000, 50);
  int differ = 0;
  for (int row = 0; row < 50; ++row) {
    for (int i = 0; i < 32; ++i) {
      const float frequency = 1.0f / std::pow(10000.0f, static_cast<float>(2 * i) / 64.0f);
      const float angle = static_cast<float>(1000 + row) * frequency;
      differ += std::cos(angle) != table.cos[static_cast<std::size_t>(row * 32 + i)];
    }
  }
  EXPECT_GT(differ, 500);
}

TEST(Golden, RopeTableKeepsItsBits) {
  const Table table = make_table(1e6, 128, 0, 512);
  EXPECT_EQ(digest(table.cos), "790e3f6c37a2652d");
  EXPECT_EQ(digest(table.sin), "b6ff8ac8f0de7f6d");
}

}  // namespace
}  // namespace rlk::numerics
