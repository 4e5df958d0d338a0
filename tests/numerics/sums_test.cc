// The reductions against the words of the contract, and twins with another order.
#include "rlk/numerics/sums.h"

#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "tests/numerics/data.h"

namespace rlk::numerics {
namespace {

float left_fold(const std::vector<float>& x) {
  float sum = 0.0f;
  for (const float v : x) sum += v;
  return sum;
}

// "neighbours are added, level by level, until one is left", as a recursion on halves of a power of
// two: the sum of the lower half plus the sum of the upper half.
float tree(const float* x, std::size_t n) {
  return n == 1 ? x[0] : tree(x, n / 2) + tree(x + n / 2, n / 2);
}

TEST(NeighbourTree, AddsNeighboursLevelByLevel) {
  for (const std::size_t n : {1, 2, 4, 16, 256}) {
    std::vector<float> x = ill_conditioned(1, static_cast<std::int64_t>(n));
    const float expected = tree(x.data(), n);
    EXPECT_EQ(bits(neighbour_tree(x.data(), static_cast<int>(n))), bits(expected + 0.0f));
  }
}

TEST(SumsTwin, ALeftFoldOrHalvesGiveOtherBits) {
  std::vector<float> x = ill_conditioned(1, 256);
  std::vector<float> halves = x;
  for (std::size_t n = 128; n > 0; n /= 2) {
    for (std::size_t i = 0; i < n; ++i) halves[i] += halves[i + n];
  }
  const float fold = left_fold(x);
  const float sum = neighbour_tree(x.data(), 256);
  EXPECT_NE(bits(fold), bits(sum));
  EXPECT_NE(bits(halves[0]), bits(sum));
}

TEST(LeafBound, CutsAtMultiplesOf16) {
  for (const std::int64_t n : {0, 1, 16, 17, 100, 128, 1000, 4096, 11008, 151936}) {
    for (const std::int64_t leaves : {1, 2, 4, 8, 16}) {
      EXPECT_EQ(leaf_bound(n, leaves, 0), 0);
      EXPECT_EQ(leaf_bound(n, leaves, leaves), n);
      for (std::int64_t i = 1; i < leaves; ++i) {
        const std::int64_t b = leaf_bound(n, leaves, i);
        EXPECT_EQ(b % 16, 0);
        EXPECT_EQ(b, 16 * (i * ((n + 15) / 16) / leaves));
        EXPECT_LE(leaf_bound(n, leaves, i - 1), b);
        EXPECT_LE(b, n);
      }
    }
  }
  EXPECT_EQ(leaf_bound(100, 2, 1), 48);
}

TEST(Chain, IsAnFmaLoop) {
  const std::vector<float> a = ill_conditioned(2, 100);
  const std::vector<float> b = ill_conditioned(3, 100);
  float acc = 0.0f;
  for (std::size_t i = 0; i < 100; ++i) acc = std::fma(a[i], b[i], acc);
  EXPECT_EQ(bits(dot_chain(Strided{a.data()}, Strided{b.data()}, 100)), bits(acc));
}

TEST(ChainInvariance, MayStopAndGoOnLater) {
  const std::vector<float> a = ill_conditioned(2, 100);
  const std::vector<float> b = ill_conditioned(3, 100);
  const Strided la{a.data()}, lb{b.data()};
  for (std::int64_t cut = 0; cut <= 100; ++cut) {
    EXPECT_EQ(bits(chain(chain(0.0f, la, lb, 0, cut), la, lb, cut, 100)),
              bits(chain(0.0f, la, lb, 0, 100)));
  }
}

TEST(ChainTwin, TwoPartsAddedGiveOtherBits) {
  const std::vector<float> a = ill_conditioned(2, 100);
  const std::vector<float> b = ill_conditioned(3, 100);
  const Strided la{a.data()}, lb{b.data()};
  EXPECT_NE(bits(chain(0.0f, la, lb, 0, 48) + chain(0.0f, la, lb, 48, 100)),
            bits(chain(0.0f, la, lb, 0, 100)));
}

TEST(LeafTree, IsATreeOverChains) {
  for (const std::int64_t n : {1, 5, 40, 128, 1000}) {
    const std::vector<float> a = ill_conditioned(4, n);
    const std::vector<float> b = ill_conditioned(5, n);
    const Strided la{a.data()}, lb{b.data()};
    for (const int leaves : {1, 2, 8}) {
      std::vector<float> leaf;
      for (int i = 0; i < leaves; ++i) {
        float acc = 0.0f;
        for (std::int64_t k = leaf_bound(n, leaves, i); k < leaf_bound(n, leaves, i + 1); ++k) {
          acc = std::fma(la(k), lb(k), acc);
        }
        leaf.push_back(acc);
      }
      EXPECT_EQ(bits(leaf_tree(la, lb, n, leaves)), bits(tree(leaf.data(), leaf.size()) + 0.0f));
    }
  }
}

TEST(LeafTreeInvariance, RanksThatOwnSubtreesGiveTheSameBits) {
  const std::int64_t n = 1024;
  const std::vector<float> a = ill_conditioned(6, n);
  const std::vector<float> b = ill_conditioned(7, n);
  const float whole = leaf_tree(Strided{a.data()}, Strided{b.data()}, n, 8);
  for (const int ranks : {2, 4, 8}) {
    std::vector<float> partial;
    for (int rank = 0; rank < ranks; ++rank) {
      const std::int64_t begin = n / ranks * rank;
      partial.push_back(
          leaf_tree(Strided{a.data() + begin}, Strided{b.data() + begin}, n / ranks, 8 / ranks));
    }
    EXPECT_EQ(bits(neighbour_tree(partial.data(), ranks)), bits(whole));
  }
}

TEST(LeafTreeTwin, RanksWithoutLeavesGiveOtherBits) {
  const std::int64_t n = 1024;
  const std::vector<float> a = ill_conditioned(6, n);
  const std::vector<float> b = ill_conditioned(7, n);
  const Strided la{a.data()}, lb{b.data()};
  EXPECT_NE(bits(leaf_tree(la, lb, n, 1)), bits(leaf_tree(la, lb, n, 8)));
  EXPECT_NE(bits(leaf_tree(la, lb, n, 4)), bits(leaf_tree(la, lb, n, 8)));
}

TEST(LaneSum, DealsElementsToLanes) {
  for (const std::int64_t n : {0, 1, 100, 256, 257, 1000}) {
    const std::vector<float> a = ill_conditioned(8, n + 1);
    std::vector<float> lanes(256, 0.0f);
    for (std::size_t j = 0; j < 256; ++j) {
      for (std::size_t k = j; k < static_cast<std::size_t>(n); k += 256) {
        lanes[j] = std::fma(a[k], a[k], lanes[j]);
      }
    }
    const Strided la{a.data()};
    EXPECT_EQ(bits(lane_sum(la, la, n, 256)), bits(tree(lanes.data(), 256) + 0.0f)) << n;
  }
}

TEST(LaneSum, ReadsStridedBf16AndF32) {
  const std::vector<float> x = ill_conditioned(9, 300);
  std::vector<bf16> wide(900);
  std::vector<float> rounded;
  for (std::size_t i = 0; i < 300; ++i) {
    wide[3 * i] = to_bf16(x[i]);
    rounded.push_back(round_bf16(x[i]));
  }
  const Strided lr{rounded.data()}, lx{x.data()};
  EXPECT_EQ(bits(lane_sum(wide.data(), 3, x.data(), 1, 300, 64)), bits(lane_sum(lr, lx, 300, 64)));
}

TEST(LaneSumTwin, OtherLaneCountsGiveOtherBits) {
  const std::vector<float> a = ill_conditioned(10, 1000);
  const std::vector<float> b = ill_conditioned(11, 1000);
  const Strided la{a.data()}, lb{b.data()};
  EXPECT_NE(bits(lane_sum(la, lb, 1000, 128)), bits(lane_sum(la, lb, 1000, 256)));
  EXPECT_NE(bits(dot_chain(la, lb, 1000)), bits(lane_sum(la, lb, 1000, 256)));
}

TEST(TokenSum, FoldsBlocksOfEachSample) {
  const std::vector<float> x = ill_conditioned(12, 200);
  const auto step = [&](std::int64_t t, float acc) { return acc + x[static_cast<std::size_t>(t)]; };
  float total = 0.0f;
  for (std::size_t begin = 0; begin < 200; begin += 64) {
    float acc = 0.0f;
    for (std::size_t t = begin; t < std::min<std::size_t>(200, begin + 64); ++t) acc += x[t];
    total += acc;
  }
  EXPECT_EQ(bits(token_sum(0.0f, step, 200, 64)), bits(total));
}

TEST(TokenSumTwin, BlocksCutElsewhereGiveOtherBits) {
  const std::vector<float> x = ill_conditioned(12, 200);
  const auto step = [&](std::int64_t t, float acc) { return acc + x[static_cast<std::size_t>(t)]; };
  EXPECT_NE(bits(token_sum(0.0f, step, 200, 32)), bits(token_sum(0.0f, step, 200, 64)));
  EXPECT_NE(bits(token_sum(0.0f, step, 200, 200)), bits(token_sum(0.0f, step, 200, 64)));
}

TEST(Sums, AZeroResultIsPlusZero) {
  const float tiny = 0x1p-149f;
  const auto minus = [&](std::int64_t) { return -tiny; };
  const auto half = [](std::int64_t) { return 0.25f; };  // the product underflows to -0
  std::vector<float> zeros(8, -0.0f);
  EXPECT_EQ(bits(neighbour_tree(zeros.data(), 8)), 0u);
  EXPECT_EQ(bits(dot_chain(minus, half, 5)), 0u);
  EXPECT_EQ(bits(leaf_tree(minus, half, 100, 4)), 0u);
  EXPECT_EQ(bits(lane_sum(minus, half, 100, 16)), 0u);
  EXPECT_EQ(bits(dot_chain(minus, half, 0)), 0u);
}

TEST(Golden, SumsKeepTheirBits) {
  const std::vector<float> a = ill_conditioned(13, 5000);
  const std::vector<float> b = ill_conditioned(14, 5000);
  const Strided la{a.data()}, lb{b.data()};
  std::vector<float> results;
  for (const std::int64_t n : {1, 100, 777, 5000}) {
    results.push_back(dot_chain(la, lb, n));
    for (const int leaves : {1, 2, 4, 8}) results.push_back(leaf_tree(la, lb, n, leaves));
    for (const int lanes : {16, 256}) results.push_back(lane_sum(la, lb, n, lanes));
  }
  EXPECT_EQ(digest(results), "a4a33e09169787be");
}

}  // namespace
}  // namespace rlk::numerics
