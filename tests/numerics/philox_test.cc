// Known answers of Philox4x32-10 (those of its authors' Random123) and the keyed noise.
#include "rlk/numerics/philox.h"

#include <cmath>
#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "tests/numerics/data.h"

namespace rlk::numerics {
namespace {

TEST(Philox, GivesTheKnownAnswers) {
  EXPECT_EQ(philox4x32_10({0, 0, 0, 0}, {0, 0}),
            (PhiloxCounter{0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u}));
  const std::uint32_t all = 0xffffffffu;
  EXPECT_EQ(philox4x32_10({all, all, all, all}, {all, all}),
            (PhiloxCounter{0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu}));
  EXPECT_EQ(philox4x32_10({0x243f6a88u, 0x85a308d3u, 0x13198a2eu, 0x03707344u},
                          {0xa4093822u, 0x299f31d0u}),
            (PhiloxCounter{0xd16cfe09u, 0x94fdccebu, 0x5001e420u, 0x24126ea1u}));
}

TEST(Gumbel, ReadsTheDocumentedWords) {
  const std::uint64_t seed = 0x0123456789abcdefu, request = 0xfedcba9876543210u;
  for (const std::uint32_t token : {0u, 1u, 2u, 3u, 151935u}) {
    const PhiloxCounter words =
        philox4x32_10({token / 4, 77, 0x76543210u, 0xfedcba98u}, {0x89abcdefu, 0x01234567u});
    const float u = (static_cast<float>(words[token % 4] >> 9) + 0.5f) * 0x1p-23f;
    EXPECT_EQ(bits(gumbel(seed, request, 77, token)), bits(-log(-log(u))));
  }
}

TEST(Gumbel, EveryPartOfTheKeyMatters) {
  std::set<std::uint32_t> seen;
  for (const std::uint64_t seed : {std::uint64_t{1}, std::uint64_t{1} << 40}) {
    for (const std::uint64_t request : {std::uint64_t{1}, std::uint64_t{1} << 40}) {
      for (const std::uint32_t position : {0u, 1u}) {
        for (std::uint32_t token = 0; token < 8; ++token) {
          seen.insert(bits(gumbel(seed, request, position, token)));
        }
      }
    }
  }
  EXPECT_EQ(seen.size(), 64u);
}

TEST(Gumbel, IsFiniteForTheExtremeWords) {
  EXPECT_EQ(uniform_f32(0), 0x1p-24f);
  EXPECT_EQ(uniform_f32(0xffffffffu), 1.0f - 0x1p-24f);
  EXPECT_NEAR(gumbel_of_word(0), -std::log(24.0 * std::log(2.0)), 1e-6);
  EXPECT_NEAR(gumbel_of_word(0xffffffffu), 24.0 * std::log(2.0), 1e-5);
}

TEST(Gumbel, UniformNumbersOf23BitsAreExact) {
  for (std::uint32_t k = 0; k < (1u << 23); k += 997) {
    ASSERT_EQ(static_cast<double>(uniform_f32(k << 9)), (k + 0.5) * 0x1p-23);
  }
}

TEST(Gumbel, MaximaSampleTheSoftmax) {
  const std::vector<double> p = {0.5, 0.25, 0.15, 0.1};
  std::vector<int> count(4, 0);
  const int draws = 40000;
  for (int draw = 0; draw < draws; ++draw) {
    std::size_t best = 0;
    float best_value = -kInfinity;
    for (std::size_t t = 0; t < 4; ++t) {
      const float value =
          static_cast<float>(std::log(p[t])) +
          gumbel(5, static_cast<std::uint64_t>(draw), 3, static_cast<std::uint32_t>(t));
      if (value > best_value) best = t, best_value = value;
    }
    ++count[best];
  }
  for (std::size_t t = 0; t < 4; ++t) EXPECT_NEAR(count[t] / double(draws), p[t], 0.01);
}

TEST(GumbelTwin, ASequentialGeneratorDependsOnItsNeighbours) {
  // Drawing from a stream, as frameworks do, gives request 1 other numbers when request 0 is there.
  Random alone(1), batched(1);
  batched.word();
  EXPECT_NE(alone.word(), batched.word());
}

TEST(Golden, GumbelKeepsItsBits) {
  std::vector<float> noise;
  for (std::uint32_t t = 0; t < 10000; ++t) noise.push_back(gumbel(42, 7, 11, t));
  EXPECT_EQ(digest(noise), "6a4e7f215b9c00e3");
}

}  // namespace
}  // namespace rlk::numerics
