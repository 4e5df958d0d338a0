// Reference attention: values by hand, a second text of the contract, and every change that must
// not reach a bit: pages, chunks, packing.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "rlk/kernels/reference/table.h"
#include "rlk/numerics/math.h"
#include "test_data.h"

namespace rlk::test {
namespace {

constexpr std::int64_t kHeads = 4;
constexpr std::int64_t kKvHeads = 2;
constexpr std::int64_t kD = 12;

Contract small_blocks() {
  Contract contract;
  contract.kv_block = 16;
  contract.kv_split = 64;
  return contract;
}

// One sequence: queries, keys and values of `n` positions.
struct Sequence {
  std::int64_t n;
  Tensor q, k, v;
};

Sequence sequence(std::int64_t n, Kind kind = Kind::kMixed, std::uint64_t seed = 21) {
  // Scores of a few units with some hundreds in between; values that cancel.
  return {n, random_tensor(DType::kBF16, {n, kHeads, kD}, seed, Kind::kNormal, 2.0),
          random_tensor(DType::kBF16, {n, kKvHeads, kD}, seed + 1, Kind::kNormal, 2.0),
          random_tensor(DType::kBF16, {n, kKvHeads, kD}, seed + 2, kind)};
}

struct Output {
  Tensor y, lse;
};

Output output(std::int64_t n) {
  return {Tensor(DType::kBF16, {n, kHeads, kD}), Tensor(DType::kF32, {n, kHeads})};
}

// All positions at once, keys and values where the sequence has them.
Output run_packed(const Sequence& s, const Contract& contract = small_blocks()) {
  TestExec exec(contract);
  Output out = output(s.n);
  const Tensor kv_start = i32_tensor({0});
  const auto n = static_cast<std::int32_t>(s.n);
  reference::attention(
      exec, {out.y, out.lse, s.q, {s.k, s.v, {}, kv_start, 0}, cu_seqlens({n}), i32_tensor({n})});
  EXPECT_EQ(exec.fault.row(), -1);
  return out;
}

// Positions `chunks` at a time, from pages in a shuffled order; free slots hold garbage.
Output run_paged(const Sequence& s, std::int64_t page_size, const std::vector<std::int64_t>& chunks,
                 const Contract& contract = small_blocks()) {
  const std::int64_t num_pages = (s.n + page_size - 1) / page_size;
  std::vector<std::int32_t> table(static_cast<std::size_t>(num_pages));
  std::iota(table.begin(), table.end(), 1);
  Rng rng(31);
  for (std::size_t i = table.size(); i > 1; --i) {
    std::swap(table[i - 1], table[static_cast<std::size_t>(rng.below(static_cast<int>(i)))]);
  }
  const std::int64_t num_rows = (num_pages + 1) * page_size;
  Tensor k = random_tensor(DType::kBF16, {num_rows, kKvHeads, kD}, 32, Kind::kNormal, 1e6);
  Tensor v = random_tensor(DType::kBF16, {num_rows, kKvHeads, kD}, 33, Kind::kNormal, 1e6);
  for (std::int64_t p = 0; p < s.n; ++p) {
    const std::int64_t row =
        table[static_cast<std::size_t>(p / page_size)] * page_size + p % page_size;
    constexpr std::size_t kRowBytes = kKvHeads * kD * sizeof(bf16);
    std::memcpy(k.view().at<bf16>(row), s.k.view().at<bf16>(p), kRowBytes);
    std::memcpy(v.view().at<bf16>(row), s.v.view().at<bf16>(p), kRowBytes);
  }
  TestExec exec(contract);
  Output out = output(s.n);
  std::int64_t begin = 0;
  for (std::size_t i = 0; begin < s.n; ++i) {
    const std::int64_t end = std::min(s.n, begin + chunks[std::min(i, chunks.size() - 1)]);
    const KvView kv{k, v, view(table.data(), {1, num_pages}), {}, page_size};
    reference::attention(exec, {rows(out.y.view(), begin, end), rows(out.lse.view(), begin, end),
                                rows(s.q.view(), begin, end), kv,
                                cu_seqlens({static_cast<std::int32_t>(end - begin)}),
                                i32_tensor({static_cast<std::int32_t>(end)})});
    begin = end;
  }
  EXPECT_EQ(exec.fault.row(), -1);
  return out;
}

void expect_same(const Output& a, const Output& b) {
  EXPECT_TRUE(same_bits(a.y, b.y));
  EXPECT_TRUE(same_bits(a.lse, b.lse));
}

TEST(Attention, OfOneKeyIsItsValue) {
  const Sequence s = sequence(1, Kind::kNormal);
  const Output out = run_packed(s);
  for (std::int64_t h = 0; h < kHeads; ++h) {
    float score = 0.0f;
    for (std::int64_t x = 0; x < kD; ++x) {
      score = std::fma(value(s.q, h * kD + x), value(s.k, h / 2 * kD + x), score);
      EXPECT_EQ(value(out.y, h * kD + x), value(s.v, h / 2 * kD + x));
    }
    EXPECT_FLOAT_EQ(value(out.lse, h), score * 0.41647017f);  // log2(e) / sqrt(12)
  }
}

TEST(Attention, IsCloseToTheSoftmaxInDouble) {
  const Sequence s = sequence(200, Kind::kNormal);
  const Output out = run_packed(s);
  for (std::int64_t t = 0; t < s.n; ++t) {
    for (std::int64_t h = 0; h < kHeads; ++h) {
      std::vector<double> weights;
      double total = 0.0;
      for (std::int64_t j = 0; j <= t; ++j) {
        double score = 0.0;
        for (std::int64_t x = 0; x < kD; ++x) {
          score += double{value(s.q, (t * kHeads + h) * kD + x)} *
                   double{value(s.k, (j * kKvHeads + h / 2) * kD + x)};
        }
        weights.push_back(std::exp(score / std::sqrt(12.0)));
        total += weights.back();
      }
      EXPECT_NEAR(value(out.lse, t * kHeads + h), std::log2(total), 1e-4);
      for (std::int64_t x = 0; x < kD; ++x) {
        double y = 0.0;
        for (std::int64_t j = 0; j <= t; ++j) {
          y += weights[static_cast<std::size_t>(j)] / total *
               double{value(s.v, (j * kKvHeads + h / 2) * kD + x)};
        }
        EXPECT_NEAR(value(out.y, (t * kHeads + h) * kD + x), y, 0.02);
      }
    }
  }
}

// y and lse of the last query of head 0, written once more in the plainest form. `first_block` keys
// in the first block of a split; the contract has kv_block there too.
std::vector<float> last_query(const Sequence& s, const Contract& contract,
                              std::int64_t first_block) {
  const float c = static_cast<float>(1.4426950408889634 / std::sqrt(12.0));
  const auto query = [&](std::int64_t x) { return value(s.q, (s.n - 1) * kHeads * kD + x); };
  const auto key = [&](std::int64_t j, std::int64_t x) {
    return value(s.k, j * kKvHeads * kD + x);
  };
  const auto val = [&](std::int64_t j, std::int64_t x) {
    return value(s.v, j * kKvHeads * kD + x);
  };
  std::vector<float> o_all(kD), y(kD);
  float m_all = 0.0f, l_all = 0.0f;
  for (std::int64_t split = 0; split < s.n; split += contract.kv_split) {
    float m = -INFINITY;
    std::vector<float> lane(16, 0.0f), o(kD, 0.0f);
    const std::int64_t split_end = std::min<std::int64_t>(s.n, split + contract.kv_split);
    std::int64_t end = 0;
    for (std::int64_t begin = split; begin < split_end; begin = end) {
      end = std::min(split_end, begin + (begin == split ? first_block : contract.kv_block));
      std::vector<float> score;
      for (std::int64_t j = begin; j < end; ++j) {
        float sum = 0.0f;
        for (std::int64_t x = 0; x < kD; ++x) sum = std::fma(query(x), key(j, x), sum);
        score.push_back(sum);
      }
      const float next = std::max(m, c * *std::max_element(score.begin(), score.end()));
      const float a = numerics::exp2p(m - next);
      m = next;
      for (float& l : lane) l *= a;
      for (float& x : o) x *= a;
      for (std::size_t j = 0; j < score.size(); ++j) {
        const float e = numerics::exp2p(std::fma(score[j], c, -m));
        lane[j % 16] += e;
        for (std::size_t x = 0; x < kD; ++x) {
          o[x] = std::fma(numerics::round_bf16(e),
                          val(begin + static_cast<int>(j), static_cast<int>(x)), o[x]);
        }
      }
    }
    for (std::size_t n = 8; n > 0; n /= 2) {
      for (std::size_t i = 0; i < n; ++i) lane[i] = lane[2 * i] + lane[2 * i + 1];
    }
    const float top = split == 0 ? m : std::max(m_all, m);
    const float a1 = split == 0 ? 0.0f : numerics::exp2p(m_all - top);
    const float a2 = numerics::exp2p(m - top);
    l_all = std::fma(l_all, a1, lane[0] * a2);
    for (std::size_t x = 0; x < kD; ++x) o_all[x] = std::fma(o_all[x], a1, o[x] * a2);
    m_all = top;
  }
  for (std::size_t x = 0; x < kD; ++x) y[x] = numerics::round_bf16(o_all[x] / l_all + 0.0f);
  y.push_back(std::fma(numerics::log(l_all), 0x1.715476p+0f, m_all));
  return y;
}

std::vector<float> last_row(const Output& out, std::int64_t n) {
  std::vector<float> y;
  for (std::int64_t x = 0; x < kD; ++x) y.push_back(value(out.y, (n - 1) * kHeads * kD + x));
  y.push_back(value(out.lse, (n - 1) * kHeads));
  return y;
}

TEST(Attention, FollowsBlocksLanesAndSplits) {
  for (const std::int64_t n : {1, 15, 16, 17, 64, 65, 150, 200}) {
    const Sequence s = sequence(n, Kind::kCancelling, 41);
    EXPECT_EQ(last_row(run_packed(s), n), last_query(s, small_blocks(), 16)) << n << " keys";
  }
}

TEST(AttentionInvariance, PageSizeAndPageOrderGiveTheSameBits) {
  const Sequence s = sequence(150);
  const Output packed = run_packed(s);
  for (const std::int64_t page_size : {8, 16, 64, 7}) {
    expect_same(packed, run_paged(s, page_size, {150}));
  }
}

TEST(AttentionInvariance, PrefillDecodeAndChunksGiveTheSameBits) {
  const Sequence s = sequence(150);
  const Output packed = run_packed(s);
  expect_same(packed, run_paged(s, 16, {1}));
  expect_same(packed, run_paged(s, 8, {100, 1}));
  expect_same(packed, run_paged(s, 64, {33, 50, 17, 1, 2}));
}

TEST(AttentionInvariance, NeighboursInTheBatchDoNotMatter) {
  const Sequence a = sequence(70, Kind::kCancelling, 51);
  const Sequence b = sequence(30, Kind::kCancelling, 61);
  Tensor q(DType::kBF16, {100, kHeads, kD});
  Tensor k(DType::kBF16, {100, kKvHeads, kD});
  Tensor v(DType::kBF16, {100, kKvHeads, kD});
  const auto join = [](Tensor& out, const Tensor& first, const Tensor& second) {
    std::memcpy(out.data<bf16>(), first.data<bf16>(), first.size_bytes());
    std::memcpy(out.data<bf16>() + first.size(), second.data<bf16>(), second.size_bytes());
  };
  join(q, b.q, a.q);
  join(k, b.k, a.k);
  join(v, b.v, a.v);
  TestExec exec(small_blocks());
  Output out = output(100);
  reference::attention(exec, {out.y,
                              out.lse,
                              q,
                              {k, v, {}, i32_tensor({0, 30}), 0},
                              cu_seqlens({30, 70}),
                              i32_tensor({30, 70})});
  const Output alone = run_packed(a);
  EXPECT_EQ(std::memcmp(out.y.view().at<bf16>(30), alone.y.data<bf16>(), alone.y.size_bytes()), 0);
  EXPECT_EQ(
      std::memcmp(out.lse.view().at<float>(30), alone.lse.data<float>(), alone.lse.size_bytes()),
      0);
}

TEST(AttentionTwin, OtherBlocksSplitsAndLanesGiveOtherBits) {
  const Sequence s = sequence(150, Kind::kCancelling);
  const Output right = run_packed(s);
  Contract contract = small_blocks();
  contract.kv_block = 32;
  EXPECT_FALSE(same_bits(right.y, run_packed(s, contract).y));
  contract = small_blocks();
  contract.kv_split = 32;
  EXPECT_FALSE(same_bits(right.y, run_packed(s, contract).y));
  contract = small_blocks();
  contract.softmax_lanes = 8;
  EXPECT_FALSE(same_bits(right.lse, run_packed(s, contract).lse));
}

TEST(AttentionTwin, BlocksThatBeginAtAPrefixHitGiveOtherBits) {
  int differ = 0;
  for (std::int64_t n = 100; n < 150; ++n) {
    const Sequence s = sequence(n, Kind::kCancelling);
    differ += last_row(run_packed(s), n) != last_query(s, small_blocks(), 5);
  }
  EXPECT_GT(differ, 10);
}

TEST(Attention, ReportsScoresOutOfRangeAndQueriesWithoutKeys) {
  Sequence s = sequence(3, Kind::kNormal);
  *s.q.view().at<bf16>(1, 2, 0) = numerics::to_bf16(0x1p40f);
  *s.k.view().at<bf16>(0, 1, 0) = numerics::to_bf16(1.0f);
  Output out = output(3);
  TestExec exec(small_blocks());
  const Tensor kv_start = i32_tensor({0});
  const AttentionArgs args{out.y, out.lse, s.q, {s.k, s.v, {}, kv_start, 0}, {}, {}};
  const auto run = [&](std::int32_t kv_len) {
    const Tensor cu = cu_seqlens({3});
    const Tensor kv_lens = i32_tensor({kv_len});
    AttentionArgs with = args;
    with.cu_seqlens_q = cu;
    with.kv_lens = kv_lens;
    exec.fault.clear();
    reference::attention(exec, with);
    return exec.fault.row();
  };
  EXPECT_EQ(run(3), 1 * kHeads + 2);
  EXPECT_EQ(run(2), 0);  // the first query stands at position -1
}

}  // namespace
}  // namespace rlk::test
