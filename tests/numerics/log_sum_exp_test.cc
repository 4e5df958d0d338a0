// Section 5 of the contract: any order and any split of a row gives the same bits, and they are
// right.
#include "rlk/numerics/log_sum_exp.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "tests/numerics/data.h"
#include "tests/numerics/real.h"

namespace rlk::numerics {
namespace {

// Logits of a vocabulary: a sharp top, a broad middle, a far tail, a few masks. Sums of their
// exponentials in f32 or f64 depend on the order.
std::vector<float> make_row(std::uint32_t seed, std::int64_t n, float scale) {
  Random random(seed);
  std::vector<float> row(static_cast<std::size_t>(n));
  for (float& z : row) {
    switch (random.below(8)) {
      case 0: z = 3.0f * scale * random.normal(); break;
      case 1: z = -20.0f * scale * std::fabs(random.normal()); break;
      default: z = scale * random.normal(); break;
    }
    if (random.below(97) == 0) z = -kInfinity;
    if (random.below(97) == 0) z = -0x1.5p120f;
    if (random.below(197) == 0) z = random.below(2) != 0 ? 0.0f : -0.0f;
  }
  return row;
}

struct Case {
  std::uint32_t seed;
  std::int64_t n;
  float scale;
};
const Case kCases[] = {{1, 1, 1.0f},    {2, 2, 3.0f},      {3, 17, 2.0f},     {4, 1000, 1.0f},
                       {5, 4099, 3.0f}, {6, 4096, 30.0f},  {7, 5000, 800.0f}, {8, 3000, 1e5f},
                       {9, 1000, 1e8f}, {10, 2000, 1e-3f}, {11, 2000, 12.0f}};

EntropySumExp sum_of(const std::vector<float>& row) {
  EntropySumExp sum;
  for (const float z : row) sum.add(z);
  return sum;
}

// Cuts the row at random places, sums each piece, merges the pieces in a random order, some of them
// pairwise first.
EntropySumExp split_and_merge(const std::vector<float>& row, Random* random) {
  std::vector<EntropySumExp> parts(1 + random->below(9));  // some stay empty
  std::size_t part = 0;
  for (const float z : row) {
    if (random->below(7) == 0) part = random->below(static_cast<std::uint32_t>(parts.size()));
    parts[part].add(z);
  }
  while (parts.size() > 1) {
    random->shuffle(&parts);
    const std::size_t target = random->below(static_cast<std::uint32_t>(parts.size() - 1));
    parts[target].merge(parts.back());
    parts.pop_back();
  }
  return parts[0];
}

TEST(LogSumExpInvariance, AnyOrderAndAnySplitGiveTheSameState) {
  for (const Case& c : kCases) {
    std::vector<float> row = make_row(c.seed, c.n, c.scale);
    row.push_back(c.scale);  // never only masks
    const EntropySumExp expected = sum_of(row);
    ASSERT_EQ(expected.status(), LogitStatus::kOk);
    const LogSumExpEnd end(expected.sum);
    Random random(c.seed + 100);
    for (int trial = 0; trial < 30; ++trial) {
      random.shuffle(&row);
      const EntropySumExp sum = split_and_merge(row, &random);
      ASSERT_EQ(sum, expected) << "case " << c.seed << ", trial " << trial;
      const LogSumExpEnd other(sum.sum);
      ASSERT_EQ(bits(other.lse), bits(end.lse));
      ASSERT_EQ(bits(other.entropy(sum)), bits(end.entropy(expected)));
      ASSERT_EQ(bits(other.logp(row[0])), bits(end.logp(row[0])));
    }
  }
}

TEST(LogSumExpInvariance, RisingAndFallingLogitsDropTheSameTerms) {
  std::vector<float> row;
  for (int i = 0; i < 400; ++i) row.push_back(0.37f * static_cast<float>(i));  // 13 bins
  const EntropySumExp rising = sum_of(row);
  std::vector<float> reversed(row.rbegin(), row.rend());
  EXPECT_EQ(rising, sum_of(reversed));
  EXPECT_NE(rising.sum.s[3], 0);
}

TEST(LogSumExpInvariance, MergingAnEmptyStateChangesNothing) {
  EntropySumExp sum = sum_of({-7.5f, 2.0f, -300.0f});
  const EntropySumExp before = sum;
  sum.merge(EntropySumExp{});
  EXPECT_EQ(sum, before);
  EntropySumExp empty;
  empty.merge(before);
  EXPECT_EQ(empty, before);
}

// What an engine does without the contract: a sum of exponentials in row order, and the logp of a
// logit with it.
template <typename T>
T left_fold(const std::vector<float>& row, float z_max) {
  T sum = 0;
  for (const float z : row) sum += std::exp(static_cast<T>(z) - static_cast<T>(z_max));
  return sum;
}

TEST(LogSumExpTwin, SumsOfExponentialsDependOnTheOrder) {
  for (const Case& c : kCases) {
    if (c.n < 1000 || c.scale > 100.0f) continue;
    std::vector<float> row = make_row(c.seed, c.n, c.scale);
    const float z_max = *std::max_element(row.begin(), row.end());
    const auto logp = [&] { return -log(left_fold<float>(row, z_max)); };  // of z_max
    const float before = logp();
    const double before64 = left_fold<double>(row, z_max);
    int differ = 0, differ64 = 0;
    Random random(c.seed);
    for (int trial = 0; trial < 30; ++trial) {
      random.shuffle(&row);
      differ += bits(logp()) != bits(before);
      differ64 += bits(left_fold<double>(row, z_max)) != bits(before64);
    }
    EXPECT_GT(differ, 0) << "case " << c.seed;
    EXPECT_GT(differ64, 0) << "case " << c.seed;
  }
}

TEST(LogSumExpTwin, AWindowHungOnTheFirstBinDependsOnTheOrder) {
  // Drops terms below the first logit's window instead of the highest's.
  const auto wrong = [](const std::vector<float>& row) {
    const std::int32_t first = logit_term(row[0]).bin();
    std::int64_t sum = 0;
    for (const float z : row) {
      const LogitTerm term = logit_term(z);
      if (term.bin() >= first - 3 && term.bin() <= first)
        sum += term.q >> (16 * (first - term.bin()) / 4);
    }
    return sum;
  };
  std::vector<float> row;
  for (int i = 0; i < 100; ++i) row.push_back(0.9f * static_cast<float>(i));
  const std::vector<float> reversed(row.rbegin(), row.rend());
  EXPECT_NE(wrong(row), wrong(reversed));
}

// The exact log-sum-exp of the logits that take part, and the exact entropy.
struct Exact {
  Real lse, entropy;
};

Exact exact_of(const std::vector<float>& row) {
  Real sum, weighted, term;
  float top = -kInfinity;
  for (const float z : row) {
    if (classify_logit(z) == LogitStatus::kOk) top = std::max(top, z);
  }
  for (const float z : row) {
    if (classify_logit(z) != LogitStatus::kOk) continue;
    const double x = static_cast<double>(z) - static_cast<double>(top);  // exact enough: f32s
    mpfr_set_flt(term.get(), z, MPFR_RNDN);
    mpfr_sub_d(term.get(), term.get(), top, MPFR_RNDN);
    mpfr_exp(term.get(), term.get(), MPFR_RNDN);
    mpfr_add(sum.get(), sum.get(), term.get(), MPFR_RNDN);
    mpfr_mul_d(term.get(), term.get(), x, MPFR_RNDN);
    mpfr_add(weighted.get(), weighted.get(), term.get(), MPFR_RNDN);
  }
  Exact exact;
  mpfr_log(exact.lse.get(), sum.get(), MPFR_RNDN);
  mpfr_div(exact.entropy.get(), weighted.get(), sum.get(), MPFR_RNDN);
  mpfr_sub(exact.entropy.get(), exact.lse.get(), exact.entropy.get(), MPFR_RNDN);
  mpfr_add_d(exact.lse.get(), exact.lse.get(), top, MPFR_RNDN);
  return exact;
}

double largest_logp_error(const std::vector<float>& row) {
  const LogSumExpEnd end(sum_of(row).sum);
  const Exact exact = exact_of(row);
  double largest = 0.0;
  Real logp;
  for (const float z : row) {
    if (classify_logit(z) != LogitStatus::kOk) continue;
    mpfr_set_flt(logp.get(), z, MPFR_RNDN);
    mpfr_sub(logp.get(), logp.get(), exact.lse.get(), MPFR_RNDN);
    if (mpfr_zero_p(logp.get()) != 0) continue;
    if (mpfr_get_d(logp.get(), MPFR_RNDN) > -1e-20) continue;  // below the window
    largest = std::max(largest, error_ulp_f32(end.logp(z), logp));
    EXPECT_LE(end.logp(z), 0.0f);
  }
  return largest;
}

TEST(LogSumExp, LogpOfAVocabularyIsTheNearestF32OrNextToIt) {
  for (const Case& c : kCases) {
    if (c.n < 1000) continue;
    EXPECT_LT(largest_logp_error(make_row(c.seed, c.n, c.scale)), 0.53) << "case " << c.seed;
  }
}

// With few terms the error of P(f), 2^-23.7 relative, does not average out.
TEST(LogSumExp, LogpOfAFewLogitsIsWithinOneAndAHalfUlp) {
  Random random(21);
  double largest = 0.0;
  for (int i = 0; i < 2000; ++i) {
    std::vector<float> row(2 + random.below(4));
    for (float& z : row) z = 4.0f * random.normal();
    largest = std::max(largest, largest_logp_error(row));
  }
  EXPECT_LT(largest, 1.5);
}

TEST(LogSumExp, EntropyIsRight) {
  for (const Case& c : kCases) {
    if (c.n < 1000 || c.scale > 1000.0f) continue;
    const std::vector<float> row = make_row(c.seed, c.n, c.scale);
    const EntropySumExp sum = sum_of(row);
    const double h = LogSumExpEnd(sum.sum).entropy(sum);
    const double exact = exact_of(row).entropy.to_double();
    EXPECT_NEAR(h, exact, 2e-6 * exact + 1e-12) << "case " << c.seed;
  }
  const EntropySumExp two = sum_of({1.5f, 1.5f});
  EXPECT_NEAR(LogSumExpEnd(two.sum).entropy(two), std::log(2.0), 1e-7);
  const EntropySumExp one = sum_of({1.5f, -kInfinity});
  EXPECT_EQ(LogSumExpEnd(one.sum).entropy(one), 0.0);
}

TEST(LogSumExp, ProbabilitiesAreThoseOfLogpAndSumToOne) {
  const std::vector<float> row = make_row(5, 4099, 3.0f);
  const LogSumExpEnd end(sum_of(row).sum);
  double total = 0.0;
  for (const float z : row) {
    total += end.p(z);
    if (classify_logit(z) != LogitStatus::kOk) {
      EXPECT_EQ(bits(end.p(z)), 0u);
    } else if (end.logp(z) > -30.0f) {
      EXPECT_NEAR(end.p(z) / std::exp(static_cast<double>(z) - end.lse), 1.0, 3e-7);
    }
  }
  EXPECT_NEAR(total, 1.0, 1e-7);
}

TEST(LogSumExp, MasksTakeNoPart) {
  const EntropySumExp plain = sum_of({1.0f, 2.0f});
  const EntropySumExp masked = sum_of({-kInfinity, 1.0f, -0x1.000002p30f, 2.0f, -1e38f, -3.4e38f});
  EXPECT_EQ(plain, masked);
  EXPECT_EQ(LogSumExpEnd(masked.sum).logp(-kInfinity), -kInfinity);
  LogSumExp sum;
  EXPECT_EQ(sum.add(-kInfinity), LogitStatus::kMasked);
  EXPECT_EQ(sum.add(-0x1.000002p30f), LogitStatus::kMasked);
  EXPECT_EQ(sum.status(), LogitStatus::kMasked);
  EXPECT_EQ(sum.add(-0x1p30f), LogitStatus::kOk);
}

TEST(LogSumExp, NonFiniteAndHugeLogitsAreErrorsThatMergingKeeps) {
  for (const float z : {quiet_nan(), kInfinity, 0x1.000002p30f, -quiet_nan()}) {
    EntropySumExp sum = sum_of({1.0f});
    EXPECT_EQ(sum.add(z), LogitStatus::kNonFinite);
    EXPECT_EQ(sum.status(), LogitStatus::kNonFinite);
    EntropySumExp other = sum_of({3.0f});
    other.merge(sum);
    EXPECT_EQ(other.status(), LogitStatus::kNonFinite);
  }
  LogSumExp sum;
  EXPECT_EQ(sum.add(0x1p30f), LogitStatus::kOk);
}

TEST(LogSumExp, VeryNegativeAndVeryLargeLogitsWork) {
  for (const float z : {-0x1p29f, -0x1p30f, 0x1p30f, 4095.9998f, 4096.0f, -4096.0f, -1e8f}) {
    const LogSumExpEnd end(sum_of({z, z, z, z}).sum);
    EXPECT_NEAR(end.logp(z), -std::log(4.0f), 1e-7f) << z;
    EXPECT_NEAR(end.p(z), 0.25f, 1e-7f) << z;
    EXPECT_EQ(end.lse, static_cast<double>(z) + end.c);
    const LogSumExpEnd alone(sum_of({z}).sum);
    EXPECT_EQ(bits(alone.logp(z)), 0u) << z;
    EXPECT_NEAR(alone.p(z), 1.0f, 1e-7f) << z;
  }
}

TEST(LogSumExp, TheTwoBranchesOfATermMeetAtTwoTo12) {
  for (const float sign : {1.0f, -1.0f}) {
    const LogitTerm below = logit_term(sign * std::nextafter(0x1p12f, 0.0f));
    const LogitTerm above = logit_term(sign * 0x1p12f);
    EXPECT_EQ(below.n, above.n);
    EXPECT_NEAR(below.f, above.f, 0.0005f);
  }
}

TEST(LogSumExp, TermsArePowersOfE) {
  Random random(31);
  Real exact, log2e;
  for (int i = 0; i < 20000; ++i) {
    const float mantissa = random.uniform(-1.0f, 1.0f);
    const float z = mantissa * pow2_f32(static_cast<int>(random.below(22)) - 8);
    const LogitTerm term = logit_term(z);
    ASSERT_LE(std::fabs(term.f), 0.501f);
    ASSERT_EQ(static_cast<float>(term.q), term.power * 0x1p24f);
    mpfr_set_flt(exact.get(), z, MPFR_RNDN);
    mpfr_exp(exact.get(), exact.get(), MPFR_RNDN);
    mpfr_mul_2si(exact.get(), exact.get(), 24 - term.n, MPFR_RNDN);
    ASSERT_NEAR(static_cast<double>(term.q) / exact.to_double(), 1.0, 1.2e-7) << z;
  }
}

TEST(LogSumExp, Int64HoldsTheLargestVocabulary) {
  // The worst term: n & 15 = 15 with f near 1/2 (and near -1/2), 2^20 times.
  const float ln2 = 0.69314718f;
  for (const float exponent : {15.4999f, 14.5001f, 0.4999f, -0.4999f}) {
    const float z = exponent * ln2;
    const LogitTerm term = logit_term(z);
    __extension__ typedef __int128 int128;
    const int128 sum = static_cast<int128>(term.q << term.shift()) * kMaxVocab;
    const int128 entropy = static_cast<int128>(entropy_value(term)) * kMaxVocab;
    const int128 limit = std::numeric_limits<std::int64_t>::max();
    EXPECT_TRUE(sum < limit / 8);
    EXPECT_TRUE(entropy < limit && entropy > -limit);
  }
}

TEST(Golden, LogSumExpKeepsItsBits) {
  std::vector<double> results;
  for (const Case& c : kCases) {
    std::vector<float> row = make_row(c.seed, c.n, c.scale);
    row.push_back(c.scale);
    const EntropySumExp sum = sum_of(row);
    const LogSumExpEnd end(sum.sum);
    for (const std::int64_t s : sum.sum.s) results.push_back(std::bit_cast<double>(s));
    for (const std::int64_t e : sum.e) results.push_back(std::bit_cast<double>(e));
    results.push_back(end.lse);
    results.push_back(end.entropy(sum));
    for (const float z : row) {
      results.push_back(end.logp(z));
      results.push_back(end.p(z));
    }
  }
  EXPECT_EQ(digest(results), "c30bf5920b70d963");
}

}  // namespace
}  // namespace rlk::numerics
