// Vectors against the scalar models.
#include "rlk/numerics/mma/columns.h"

#include <string>

#include <gtest/gtest.h>

#include "rlk/numerics/mma/mac.h"
#include "tests/numerics/mma/data.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace rlk::numerics::mma {
namespace {

constexpr Profile kProfiles[] = {Profile::kSm90, Profile::kCdna3, Profile::kCdna2};

std::vector<float> widened(const std::vector<bf16>& x) {
  std::vector<float> y;
  for (const bf16 v : x) y.push_back(to_f32(v));
  return y;
}

// in.c + A B^T by the vectors, panel by panel. With `a_turned` A lies k first.
std::vector<float> by_columns(const ColumnsIsa& isa, const Inputs& in, bool a_turned = false) {
  std::vector<float> a = widened(in.a);
  if (a_turned) {
    for (std::int64_t i = 0; i < in.rows * in.k; ++i) {
      a[i % in.k * in.rows + i / in.k] = to_f32(in.a[i]);
    }
  }
  const std::int64_t a_row = a_turned ? 1 : in.k, a_step = a_turned ? in.rows : 1;
  const std::int64_t stride = isa.panel + 3;
  std::vector<float> b(static_cast<std::size_t>(in.k * stride));
  std::vector<float> acc(static_cast<std::size_t>(in.rows * isa.panel));
  std::vector<float> d(in.c.size());
  for (std::int64_t first = 0; first < in.columns; first += isa.panel) {
    const std::int64_t columns = std::min<std::int64_t>(isa.panel, in.columns - first);
    for (std::int64_t k = 0; k < in.k; ++k) {
      for (std::int64_t n = 0; n < columns; ++n) {
        b[k * stride + n] = to_f32(in.b[(first + n) * in.k + k]);
      }
    }
    const auto copy = [&](auto&& one) {
      for (std::int64_t m = 0; m < in.rows; ++m) {
        for (std::int64_t n = 0; n < columns; ++n)
          one(m * isa.panel + n, m * in.columns + first + n);
      }
    };
    copy([&](std::int64_t i, std::int64_t j) { acc[i] = in.c[j]; });
    isa.chains({acc.data(), isa.panel, a.data(), a_row, a_step, b.data(), stride, in.rows, in.k});
    copy([&](std::int64_t i, std::int64_t j) { d[j] = acc[i]; });
  }
  return d;
}

std::vector<float> by_scalar(Profile profile, const Inputs& in) {
  return with_mac(profile, [&](auto mac) {
    return in.each([&](float c, const bf16* a, const bf16* b) {
      return chain(mac, c, Strided{a}, Strided{b}, 0, in.k);
    });
  });
}

void expect_the_scalar_model(const Inputs& in, const std::string& what) {
  for (const Profile profile : kProfiles) {
    const std::vector<float> want = by_scalar(profile, in);
    for (const ColumnsIsa* isa : columns_isas(profile)) {
      EXPECT_EQ(count_different(by_columns(*isa, in), want), 0)
          << to_string(profile) << " " << isa->name << " " << what;
    }
  }
}

TEST(Columns, EqualTheScalarModelOnEveryFamily) {
  for (const Family family : kFamilies) {
    for (const std::int64_t k : {4, 8, 16, 80}) {
      expect_the_scalar_model(Inputs(family, 6, 24, 96, k), to_string(family));
    }
  }
}

TEST(Columns, EqualTheScalarModelOnLongChains) {
  for (const Family family : {Family::kNormal, Family::kLlm, Family::kExponents20}) {
    expect_the_scalar_model(Inputs(family, 7, 3, 35, 4096), to_string(family));
  }
}

TEST(Columns, PadDepthsThatFillNoGroup) {
  for (const Family family : {Family::kSignedZeros, Family::kSubnormals, Family::kAllBits}) {
    for (const std::int64_t k : {0, 1, 3, 5, 7, 9, 13, 15, 17, 27, 100}) {
      expect_the_scalar_model(Inputs(family, 8, 2, 5, k), to_string(family));
    }
  }
}

TEST(Columns, ReadOperandsWithAnyStride) {
  const Inputs in(Family::kNormal, 9, 4, 8, 37);
  for (const Profile profile : kProfiles) {
    for (const ColumnsIsa* isa : columns_isas(profile)) {
      EXPECT_EQ(count_different(by_columns(*isa, in, true), by_columns(*isa, in)), 0);
    }
  }
}

// 16 products of the largest significands of one sign are 2,130,739,200 units, and c adds up to
// 67,108,860: on Hopper beyond 2^31.
TEST(Columns, TheLargestSumLeaves32Bits) {
  for (const float sign : {1.0f, -1.0f}) {
    Inputs in(Family::kUnits, 1, 1, 64, 16);
    for (bf16& x : in.a) x = to_bf16(sign * 0x1.fep0f);
    for (bf16& x : in.b) x = to_bf16(0x1.fep0f);
    for (float& c : in.c) c = sign * 0x1.fffffep0f;
    expect_the_scalar_model(in, "largest");
  }
}

// Exponents of products and accumulators on both sides of the limits of the fast ranges.
TEST(Columns, EqualTheScalarModelAtTheEdgesOfTheFastRange) {
  for (int exponent = -130; exponent <= 128; exponent += exponent == -90 ? 212 : 1) {
    Inputs in(Family::kExponents20, 10, 8, 64, 16);
    const auto scaled = [](bf16 x, int e) {  // x's sign and fraction with exponent e
      return bf16{static_cast<std::uint16_t>((x.bits & 0x807f) | (e + 127) << 7)};
    };
    Random random(static_cast<std::uint32_t>(exponent + 200));
    for (bf16& x : in.a) x = scaled(x, exponent / 2 - static_cast<int>(random.below(20)));
    for (bf16& x : in.b) x = scaled(x, exponent - exponent / 2 - static_cast<int>(random.below(4)));
    for (float& c : in.c) {
      const int field = std::max(0, exponent + 125 - static_cast<int>(random.below(20)));
      c = std::bit_cast<float>((bits(c) & 0x807fffffu) | static_cast<std::uint32_t>(field) << 23);
    }
    expect_the_scalar_model(in, std::to_string(exponent));
  }
}

// Accumulators far above and far below the products: P is floored to 0 or -1, or c is.
TEST(Columns, EqualTheScalarModelWhereOneSideVanishes) {
  for (int exponent = -60; exponent <= 60; exponent += 3) {
    Inputs in(Family::kNormal, 11, 4, 64, 24);
    for (float& c : in.c) c *= std::ldexp(1.0f, exponent);
    expect_the_scalar_model(in, std::to_string(exponent));
  }
}

// A row of zeros, as attention makes them for keys that are not seen, hands every c on but -0.
TEST(Columns, ZeroProductsHandTheAccumulatorOn) {
  for (const Family family : kFamilies) {
    Inputs in(family, 12, 4, 64, 16);
    for (bf16& x : in.a) x = bf16{};
    expect_the_scalar_model(in, to_string(family));
  }
}

#if defined(__x86_64__)
TEST(Columns, LeaveTheThreadsModeAsItWas) {
  const Inputs in(Family::kSubnormals, 13, 4, 64, 16);
  const unsigned before = _mm_getcsr();
  _mm_setcsr(before | 0x2000);  // rounds down
  std::vector<std::vector<float>> results;
  for (const Profile profile : kProfiles) {
    for (const ColumnsIsa* isa : columns_isas(profile)) {
      if (std::string(isa->name) != "scalar" && profile == Profile::kCdna2) {
        results.push_back(by_columns(*isa, in));
      }
    }
  }
  const unsigned after = _mm_getcsr();
  _mm_setcsr(before);
  EXPECT_EQ((before | 0x2000) & 0xffc0, after & 0xffc0);
  for (const auto& result : results) {
    EXPECT_EQ(count_different(result, by_scalar(Profile::kCdna2, in)), 0);
  }
}
#endif

TEST(ColumnsTwin, AnotherProfileGivesOtherBits) {
  const Inputs in(Family::kNormal, 14, 8, 64, 64);
  for (const Profile profile : kProfiles) {
    for (const Profile other : kProfiles) {
      if (other == profile) continue;
      EXPECT_GT(
          count_different(by_columns(*columns_isas(profile).front(), in), by_scalar(other, in)), 0);
    }
  }
}

}  // namespace
}  // namespace rlk::numerics::mma
