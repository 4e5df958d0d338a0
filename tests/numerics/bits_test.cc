#include "rlk/numerics/bits.h"

#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "rlk/numerics/bf16.h"
#include "tests/numerics/data.h"

namespace rlk::numerics {
namespace {

BitComparison compare(const std::vector<float>& a, const std::vector<float>& b) {
  return compare_bits(a.data(), b.data(), static_cast<std::int64_t>(a.size()));
}

TEST(Bits, EqualArraysMatch) {
  const BitComparison c = compare({1.0f, -2.0f, kInfinity}, {1.0f, -2.0f, kInfinity});
  EXPECT_TRUE(c.equal());
  EXPECT_EQ(c.compared, 3);
  EXPECT_EQ(c.first_index, -1);
  EXPECT_EQ(c.ulp_histogram[0], 3);
  EXPECT_EQ(c.to_string(), "3 compared, all equal");
}

TEST(Bits, NothingComparedIsNoMatch) {
  EXPECT_FALSE(compare({}, {}).equal());
  EXPECT_EQ(compare({}, {}).to_string(), "nothing compared");
}

TEST(Bits, ReportsTheFirstMismatch) {
  const BitComparison c = compare({1.0f, 0.5f, 3.0f}, {1.0f, 0x1.000002p-1f, 4.0f});
  EXPECT_FALSE(c.equal());
  EXPECT_EQ(c.mismatch_count, 2);
  EXPECT_EQ(c.first_index, 1);
  EXPECT_EQ(c.first_bits_a, 0x3f000000u);
  EXPECT_EQ(c.first_bits_b, 0x3f000001u);
  EXPECT_EQ(c.max_abs_diff, 1.0);
  EXPECT_DOUBLE_EQ(c.mean_abs_diff(), (1.0 + 0x1p-24) / 3.0);
  EXPECT_EQ(c.ulp_histogram[1], 1);   // one apart
  EXPECT_EQ(c.ulp_histogram[23], 1);  // 3.0 to 4.0: 2^22
  EXPECT_NE(c.to_string().find("first at 1: 0.5 (0x3f000000) != 0.50000006 (0x3f000001)"),
            std::string::npos)
      << c.to_string();
}

TEST(Bits, ZerosOfBothSignsDiffer) {
  const BitComparison c = compare({0.0f}, {-0.0f});
  EXPECT_EQ(c.mismatch_count, 1);
  EXPECT_EQ(c.max_abs_diff, 0.0);
  EXPECT_EQ(ulp_distance(0.0f, -0.0f), 1);
}

TEST(Bits, ANanIsAMismatchEvenWithEqualBits) {
  const BitComparison c = compare({quiet_nan(), 1.0f}, {quiet_nan(), 1.0f});
  EXPECT_EQ(c.mismatch_count, 1);
  EXPECT_EQ(c.nan_count, 1);
  EXPECT_EQ(c.mean_abs_diff(), 0.0);
}

TEST(Bits, UlpDistanceCountsNumbersBetween) {
  EXPECT_EQ(ulp_distance(1.0f, 1.0f), 0);
  EXPECT_EQ(ulp_distance(-0x1p-149f, 0x1p-149f), 3);
  EXPECT_EQ(ulp_distance(std::numeric_limits<float>::max(), kInfinity), 1);
  EXPECT_EQ(ulp_distance(-kInfinity, kInfinity), 2 * 0x7f800000ll + 1);
  EXPECT_EQ(ulp_distance(bf16{0x3f80}, bf16{0x3f83}), 3);
  const BitComparison c = compare({-kInfinity}, {kInfinity});
  EXPECT_EQ(c.ulp_histogram[32], 1);
}

TEST(Bits, ComparesBf16) {
  const std::vector<bf16> a = {to_bf16(1.0f), to_bf16(2.0f)};
  const std::vector<bf16> b = {to_bf16(1.0f), to_bf16(2.015625f)};
  const BitComparison c = compare_bits(a.data(), b.data(), 2);
  EXPECT_EQ(c.mismatch_count, 1);
  EXPECT_EQ(c.first_bits_b, 0x4001u);
  EXPECT_NE(c.to_string().find("(0x4000) != 2.015625 (0x4001)"), std::string::npos);
}

TEST(BitsInvariance, PiecesAppendedGiveTheWhole) {
  std::vector<float> a = ill_conditioned(1, 100);
  std::vector<float> b = a;
  b[40] = -b[40];
  b[77] = quiet_nan();
  const BitComparison whole = compare(a, b);
  BitComparison total;
  for (const std::int64_t begin : {0, 30, 60}) {
    append(&total, compare_bits(a.data() + begin, b.data() + begin, begin == 60 ? 40 : 30));
  }
  EXPECT_EQ(total.to_string(), whole.to_string());
  EXPECT_EQ(total.first_index, 40);
  EXPECT_EQ(total.ulp_histogram, whole.ulp_histogram);
  EXPECT_EQ(total.mean_abs_diff(), whole.mean_abs_diff());
}

TEST(BitsTwin, AToleranceWouldNotSeeASingleBit) {
  const std::vector<float> a = {1000.0f}, b = {std::nextafter(1000.0f, 2000.0f)};
  EXPECT_LT(std::fabs(a[0] - b[0]), 1e-4f);
  EXPECT_FALSE(compare(a, b).equal());
}

}  // namespace
}  // namespace rlk::numerics
