#include "rlk/rl/advantage.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "rlk/core/error.h"

namespace rlk {
namespace {

std::vector<float> advantages(const std::vector<double>& rewards, std::int64_t group_size,
                              double eps = 1e-6, int ddof = 1) {
  std::vector<float> out(rewards.size(), -7.0f);
  Context ctx({}, all_ops(Mode::kStrict), 1);
  group_advantages(ctx, out, rewards, group_size, eps, ddof);
  return out;
}

ErrorCode code_of(const std::vector<double>& rewards, std::int64_t group_size, double eps,
                  int ddof) {
  try {
    advantages(rewards, group_size, eps, ddof);
  } catch (const Error& e) {
    return e.code();
  }
  ADD_FAILURE() << "no error";
  return ErrorCode::kIo;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

TEST(Advantage, IsTheDistanceFromTheMeanInStandardDeviations) {
  EXPECT_EQ(advantages({1, 0, 0, 1}, 4, 0, 0), (std::vector<float>{1, -1, -1, 1}));
  EXPECT_EQ(advantages({0, 2, 4}, 3, 0, 1), (std::vector<float>{-1, 0, 1}));
  EXPECT_EQ(advantages({0, 2, 4}, 3, 2.0, 1), (std::vector<float>{-0.5, 0, 0.5}));
}

TEST(Advantage, TreatsEachGroupAlone) {
  const auto both = advantages({1, 0, 0, 1, 0.25, 0.5, 0.5, 1}, 4);
  const auto first = advantages({1, 0, 0, 1}, 4);
  const auto second = advantages({0.25, 0.5, 0.5, 1}, 4);
  EXPECT_TRUE(std::equal(first.begin(), first.end(), both.begin()));
  EXPECT_TRUE(std::equal(second.begin(), second.end(), both.begin() + 4));
}

TEST(Advantage, IsPlusZeroWhenAllRewardsAreEqual) {
  // 0.1 summed three times is not 3 * 0.1: without the rule the result would not be zero.
  for (const float a : advantages({0.1, 0.1, 0.1}, 3, 0, 1)) {
    EXPECT_EQ(a, 0.0f);
    EXPECT_FALSE(std::signbit(a));
  }
  EXPECT_EQ(advantages({0.3}, 1, 1e-6, 0), (std::vector<float>{0}));
}

// Rewards of very different sizes, so that the order of the sum shows in the bits.
const std::vector<double> kIllConditioned = {1e16, 1.0, -1e16, 3.0, 0.1, 7e15, -7e15, 0.3};

std::vector<float> by_contract(const std::vector<double>& rewards, bool rising) {
  std::vector<double> ordered = rewards;
  if (!rising) std::reverse(ordered.begin(), ordered.end());
  double sum = 0;
  for (const double r : ordered) sum = sum + r;
  const double mean = sum / static_cast<double>(rewards.size());
  double squares = 0;
  for (const double r : ordered) squares = squares + (r - mean) * (r - mean);
  const double std_dev = std::sqrt(squares / (static_cast<double>(rewards.size()) - 1));
  std::vector<float> out;
  for (const double r : rewards) out.push_back(static_cast<float>((r - mean) / (std_dev + 1e-6)));
  return out;
}

TEST(AdvantageInvariance, SumsInRisingOrderWhateverTheOtherGroupsAre) {
  const auto expected = by_contract(kIllConditioned, true);
  EXPECT_TRUE(same_bits(advantages(kIllConditioned, 8), expected));
  std::vector<double> two_groups = {5, 4, 3, 2, 1, 0, 1, 2};
  two_groups.insert(two_groups.end(), kIllConditioned.begin(), kIllConditioned.end());
  const auto both = advantages(two_groups, 8);
  EXPECT_TRUE(same_bits({both.begin() + 8, both.end()}, expected));
}

TEST(AdvantageTwin, FallingOrderGivesOtherBits) {
  EXPECT_FALSE(same_bits(advantages(kIllConditioned, 8), by_contract(kIllConditioned, false)));
}

TEST(Advantage, RefusesSizesThatDoNotFit) {
  EXPECT_EQ(code_of({1, 2, 3}, 2, 0, 1), ErrorCode::kShape);
  EXPECT_EQ(code_of({1, 2, 3}, 0, 0, 1), ErrorCode::kShape);
  std::vector<float> room(2);
  const std::vector<double> rewards = {1, 2, 3};
  Context ctx({}, all_ops(Mode::kStrict), 1);
  EXPECT_THROW(group_advantages(ctx, room, rewards, 3, 0, 1), Error);
}

TEST(Advantage, RefusesOptionsOutsideTheirRange) {
  EXPECT_EQ(code_of({1, 2}, 2, -1, 1), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of({1, 2}, 2, std::nan(""), 1), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of({1, 2}, 2, 0, 2), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of({1, 2}, 2, 0, -1), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of({1, 2}, 1, 0, 1), ErrorCode::kInvalidArgument);
}

TEST(Advantage, RefusesWhatIsNotFinite) {
  const double inf = std::numeric_limits<double>::infinity();
  EXPECT_EQ(code_of({1, std::nan("")}, 2, 0, 1), ErrorCode::kNonFinite);
  EXPECT_EQ(code_of({1, inf}, 2, 0, 1), ErrorCode::kNonFinite);
  EXPECT_EQ(code_of({inf, inf}, 2, 0, 1), ErrorCode::kNonFinite);
  EXPECT_EQ(code_of({1e300, -1e300}, 2, 0, 1), ErrorCode::kNonFinite);  // squares overflow
  EXPECT_EQ(code_of({0, 5e-324, 0}, 3, 0, 1), ErrorCode::kNonFinite);   // squares vanish
}

}  // namespace
}  // namespace rlk
