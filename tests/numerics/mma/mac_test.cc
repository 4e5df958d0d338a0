// Chains and trees of every profile's mac.
#include "rlk/numerics/mma/mac.h"

#include <gtest/gtest.h>

#include "tests/numerics/mma/data.h"

namespace rlk::numerics {
namespace {

using mma::Family;
using mma::Inputs;

constexpr Profile kAll[] = {Profile::kPortable, Profile::kSm90, Profile::kCdna3, Profile::kCdna2};

TEST(Mac, HasTheWidthOfItsProfile) {
  const auto width = [](Profile profile) {
    return with_mac(profile, [](auto mac) { return decltype(mac)::kWidth; });
  };
  EXPECT_EQ(width(Profile::kPortable), 1);
  EXPECT_EQ(width(Profile::kSm90), 16);
  EXPECT_EQ(width(Profile::kCdna3), 8);
  EXPECT_EQ(width(Profile::kCdna2), 4);
}

TEST(Mac, OfPortableIsTheFmaOfSums) {
  const Inputs in(Family::kNormal, 1, 1, 1, 777);
  const Strided a{in.a.data()}, b{in.b.data()};
  EXPECT_EQ(bits(dot_chain(PortableMac(), a, b, 777)), bits(dot_chain(a, b, 777)));
  for (const int leaves : {1, 2, 8}) {
    EXPECT_EQ(bits(leaf_tree(PortableMac(), a, b, 777, leaves)),
              bits(leaf_tree(a, b, 777, leaves)));
  }
}

TEST(Mac, PortableTakesOperandsThatAreNoBf16) {
  const float a = 1.0f + 0x1p-20f;
  EXPECT_EQ(PortableMac()(0.0f, &a, &a), a * a);
}

TEST(Mac, ChainsTakeGroupsInOrderAndPadTheLast) {
  const Inputs in(Family::kNormal, 2, 1, 1, 40);
  float by_hand = in.c[0];
  by_hand = mma::hopper_group(by_hand, &in.a[0], &in.b[0]);
  by_hand = mma::hopper_group(by_hand, &in.a[16], &in.b[16]);
  bf16 a[16] = {}, b[16] = {};
  for (int i = 0; i < 8; ++i) a[i] = in.a[32 + i], b[i] = in.b[32 + i];
  by_hand = mma::hopper_group(by_hand, a, b);
  const Strided x{in.a.data()}, y{in.b.data()};
  EXPECT_EQ(bits(chain(Sm90Mac(), in.c[0], x, y, 0, 40)), bits(by_hand));
}

TEST(MacInvariance, AChainGoesOnFromItsOneNumber) {
  for (const Profile profile : kAll) {
    with_mac(profile, [&](auto mac) {
      for (const Family family : {Family::kNormal, Family::kAllFinite, Family::kCancellingPairs}) {
        const Inputs in(family, 3, 1, 8, 200);
        for (std::int64_t n = 0; n < in.columns; ++n) {
          const Strided a{in.a.data()}, b{in.b.data() + n * in.k};
          const float whole = chain(mac, in.c[n], a, b, 0, 200);
          for (const std::int64_t cut : {0, 16, 128, 192}) {
            const float open = chain(mac, in.c[n], a, b, 0, cut);
            EXPECT_EQ(bits(chain(mac, open, a, b, cut, 200)), bits(whole)) << to_string(profile);
          }
        }
      }
      return 0;
    });
  }
}

TEST(MacTwin, ACutInsideAGroupGivesOtherBits) {
  for (const Profile profile : {Profile::kSm90, Profile::kCdna3, Profile::kCdna2}) {
    const int changed = with_mac(profile, [&](auto mac) {
      const Inputs in(Family::kNormal, 3, 1, 64, 64);
      int count = 0;
      for (std::int64_t n = 0; n < in.columns; ++n) {
        const Strided a{in.a.data()}, b{in.b.data() + n * in.k};
        const float open = chain(mac, in.c[n], a, b, 0, 34);
        count += bits(chain(mac, open, a, b, 34, 64)) != bits(chain(mac, in.c[n], a, b, 0, 64));
      }
      return count;
    });
    EXPECT_GT(changed, 0) << to_string(profile);
  }
}

TEST(MacTwin, EveryProfileHasItsOwnBits) {
  const Inputs in(Family::kNormal, 4, 1, 64, 256);
  std::vector<std::vector<float>> results;
  for (const Profile profile : kAll) {
    results.push_back(with_mac(profile, [&](auto mac) {
      return in.each([&](float, const bf16* a, const bf16* b) {
        return leaf_tree(mac, Strided{a}, Strided{b}, in.k, 4);
      });
    }));
    for (std::size_t i = 0; i + 1 < results.size(); ++i) {
      EXPECT_GT(mma::count_different(results[i], results.back()), 0);
    }
  }
}

}  // namespace
}  // namespace rlk::numerics
