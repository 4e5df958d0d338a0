// Vectors against the scalar model.
#include "rlk/numerics/mma/hopper_columns.h"

#include <string>

#include <gtest/gtest.h>

#include "rlk/numerics/mma/mac.h"
#include "tests/numerics/mma/data.h"

namespace rlk::numerics::mma {
namespace {

// in.c + A B^T by the vectors, panel by panel.
std::vector<float> by_columns(const HopperIsa& isa, const Inputs& in) {
  std::vector<HopperA> a(static_cast<std::size_t>(in.rows * hopper_depth(in.k)));
  pack_a(a.data(), in.a.data(), in.k, 1, in.rows, in.k);
  std::vector<std::uint16_t> b(static_cast<std::size_t>(packed_b_size(isa, in.k)));
  std::vector<float> acc(static_cast<std::size_t>(in.rows * isa.panel));
  std::vector<float> d(in.c.size());
  for (std::int64_t first = 0; first < in.columns; first += isa.panel) {
    const std::int64_t columns = std::min<std::int64_t>(isa.panel, in.columns - first);
    pack_b(isa, b.data(), in.b.data() + first * in.k, in.k, 1, columns, in.k);
    for (std::int64_t m = 0; m < in.rows; ++m) {
      for (std::int64_t n = 0; n < columns; ++n) {
        acc[m * isa.panel + n] = in.c[m * in.columns + first + n];
      }
    }
    mma_columns(isa, acc.data(), isa.panel, a.data(), b.data(), in.rows, in.k);
    for (std::int64_t m = 0; m < in.rows; ++m) {
      for (std::int64_t n = 0; n < columns; ++n) {
        d[m * in.columns + first + n] = acc[m * isa.panel + n];
      }
    }
  }
  return d;
}

std::vector<float> by_scalar(const Inputs& in) {
  return in.each([&](float c, const bf16* a, const bf16* b) {
    return chain(Sm90Mac(), c, Strided{a}, Strided{b}, 0, in.k);
  });
}

TEST(HopperColumns, EqualTheScalarModelOnEveryFamily) {
  for (const HopperIsa* isa : hopper_isas()) {
    for (const Family family : kFamilies) {
      for (const std::int64_t k : {16, 80}) {
        const Inputs in(family, 6, 24, 96, k);
        EXPECT_EQ(count_different(by_columns(*isa, in), by_scalar(in)), 0)
            << isa->name << " " << to_string(family) << " " << k;
      }
    }
  }
}

TEST(HopperColumns, EqualTheScalarModelOnLongChains) {
  for (const HopperIsa* isa : hopper_isas()) {
    for (const Family family : {Family::kNormal, Family::kLlm, Family::kExponents20}) {
      const Inputs in(family, 7, 3, 35, 4096);
      EXPECT_EQ(count_different(by_columns(*isa, in), by_scalar(in)), 0)
          << isa->name << " " << to_string(family);
    }
  }
}

TEST(HopperColumns, PadDepthsAndColumnsThatFillNoVector) {
  for (const HopperIsa* isa : hopper_isas()) {
    for (const std::int64_t k : {0, 1, 15, 17, 100}) {
      const Inputs in(Family::kSignedZeros, 8, 2, 5, k);
      EXPECT_EQ(count_different(by_columns(*isa, in), by_scalar(in)), 0) << isa->name << " " << k;
    }
  }
}

TEST(HopperColumns, ReadOperandsWithAnyStride) {
  const Inputs in(Family::kNormal, 9, 4, 8, 32);
  std::vector<bf16> a(in.a.size()), b(in.b.size());  // k first
  for (std::int64_t k = 0; k < in.k; ++k) {
    for (std::int64_t m = 0; m < in.rows; ++m) a[k * in.rows + m] = in.a[m * in.k + k];
    for (std::int64_t n = 0; n < in.columns; ++n) b[k * in.columns + n] = in.b[n * in.k + k];
  }
  const HopperIsa& isa = hopper_isa();
  std::vector<HopperA> a1(in.a.size()), a2(in.a.size());
  std::vector<std::uint16_t> b1(packed_b_size(isa, in.k)), b2(b1.size());
  pack_a(a1.data(), in.a.data(), in.k, 1, in.rows, in.k);
  pack_a(a2.data(), a.data(), 1, in.rows, in.rows, in.k);
  pack_b(isa, b1.data(), in.b.data(), in.k, 1, in.columns, in.k);
  pack_b(isa, b2.data(), b.data(), 1, in.columns, in.columns, in.k);
  for (std::size_t i = 0; i < a1.size(); ++i) {
    EXPECT_EQ(bits(a1[i].value), bits(a2[i].value));
    EXPECT_EQ(a1[i].exponents, a2[i].exponents);
  }
  EXPECT_EQ(b1, b2);
}

// 16 products of the largest significands of one sign are 2,130,739,200 units, and c adds up to
// 67,108,860: beyond 2^31.
TEST(HopperColumns, TheLargestSumLeaves32Bits) {
  for (const float sign : {1.0f, -1.0f}) {
    Inputs in(Family::kUnits, 1, 1, 64, 16);
    for (bf16& x : in.a) x = to_bf16(sign * 0x1.fep0f);
    for (bf16& x : in.b) x = to_bf16(0x1.fep0f);
    for (float& c : in.c) c = sign * 0x1.fffffep0f;
    for (const HopperIsa* isa : hopper_isas()) {
      EXPECT_EQ(count_different(by_columns(*isa, in), by_scalar(in)), 0) << isa->name;
    }
  }
}

// Exponents of products and accumulators on both sides of the limits of the fast range.
TEST(HopperColumns, EqualTheScalarModelAtTheEdgesOfTheFastRange) {
  for (int exponent = -104; exponent <= 128; exponent += exponent == -96 ? 218 : 1) {
    Inputs in(Family::kExponents20, 10, 8, 64, 16);
    const auto scaled = [](bf16 x, int e) {  // x's sign and fraction with exponent e
      return bf16{static_cast<std::uint16_t>((x.bits & 0x807f) | (e + 127) << 7)};
    };
    Random random(static_cast<std::uint32_t>(exponent + 200));
    for (bf16& x : in.a) x = scaled(x, exponent / 2 - static_cast<int>(random.below(20)));
    for (bf16& x : in.b) x = scaled(x, exponent - exponent / 2 - static_cast<int>(random.below(4)));
    for (float& c : in.c) {
      const auto field = static_cast<std::uint32_t>(exponent + 125 - random.below(20));
      c = std::bit_cast<float>((bits(c) & 0x807fffffu) | field << 23);
    }
    for (const HopperIsa* isa : hopper_isas()) {
      EXPECT_EQ(count_different(by_columns(*isa, in), by_scalar(in)), 0)
          << isa->name << " " << exponent;
    }
  }
}

}  // namespace
}  // namespace rlk::numerics::mma
