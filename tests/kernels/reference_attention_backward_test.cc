// Reference attention backward: finite differences, and the order of its sums.
#include <gtest/gtest.h>

#include <cmath>

#include "reference_gradient.h"
#include "rlk/kernels/reference/table.h"
#include "rlk/numerics/math.h"
#include "test_data.h"

namespace rlk::test {
namespace {

struct Case {
  std::vector<std::int32_t> lengths;
  std::int64_t heads, kv_heads, d;
  Tensor q, k, v, dy, y, lse;
};

Case attention_case(const std::vector<std::int32_t>& lengths, std::int64_t heads,
                    std::int64_t kv_heads, std::int64_t d, Kind kind = Kind::kNormal) {
  const std::int64_t n = std::accumulate(lengths.begin(), lengths.end(), 0);
  Case c{lengths,
         heads,
         kv_heads,
         d,
         random_tensor(DType::kBF16, {n, heads, d}, 71),
         random_tensor(DType::kBF16, {n, kv_heads, d}, 72),
         random_tensor(DType::kBF16, {n, kv_heads, d}, 73),
         random_tensor(DType::kBF16, {n, heads, d}, 74, kind),
         Tensor(DType::kBF16, {n, heads, d}),
         Tensor(DType::kF32, {n, heads})};
  TestExec exec;
  const Tensor cu = cu_seqlens(lengths);
  reference::attention(exec, {c.y,
                              c.lse,
                              c.q,
                              {c.k, c.v, {}, rows(cu.view(), 0, cu.shape(0) - 1), 0},
                              cu,
                              i32_tensor(lengths)});
  return c;
}

struct Gradients {
  Tensor dq, dk, dv;
};

Gradients run(const Case& c, int leaves = 8) {
  Contract contract;
  contract.leaves = leaves;
  TestExec exec(contract);
  const std::int64_t n = c.q.shape(0);
  Gradients g{Tensor(DType::kBF16, {n, c.heads, c.d}), Tensor(DType::kBF16, {n, c.kv_heads, c.d}),
              Tensor(DType::kBF16, {n, c.kv_heads, c.d})};
  reference::attention_backward(
      exec, {g.dq, g.dk, g.dv, c.dy, c.y, c.q, c.k, c.v, c.lse, cu_seqlens(c.lengths)});
  return g;
}

// sum(dy * softmax(q k^T / sqrt(d)) v), causal inside each sequence.
double loss(const Case& c, const Values& q, const Values& k, const Values& v) {
  const auto d = static_cast<std::size_t>(c.d);
  const auto heads = static_cast<std::size_t>(c.heads);
  const auto kv_heads = static_cast<std::size_t>(c.kv_heads);
  const Values dy = values(c.dy);
  double sum = 0.0;
  std::size_t first = 0;
  for (const std::int32_t length : c.lengths) {
    const std::size_t end = first + static_cast<std::size_t>(length);
    for (std::size_t t = first; t < end; ++t) {
      for (std::size_t h = 0; h < heads; ++h) {
        const std::size_t kv_head = h / (heads / kv_heads);
        double total = 0.0;
        double weighted = 0.0;
        for (std::size_t j = first; j <= t; ++j) {
          double score = 0.0;
          double along = 0.0;
          for (std::size_t x = 0; x < d; ++x) {
            score += q[(t * heads + h) * d + x] * k[(j * kv_heads + kv_head) * d + x];
            along += dy[(t * heads + h) * d + x] * v[(j * kv_heads + kv_head) * d + x];
          }
          const double e = std::exp(score / std::sqrt(static_cast<double>(d)));
          total += e;
          weighted += e * along;
        }
        sum += weighted / total;
      }
    }
    first = end;
  }
  return sum;
}

TEST(AttentionBackward, GradientsAgreeWithFiniteDifferences) {
  const Case c = attention_case({7, 1, 4}, 6, 2, 8);
  const Gradients g = run(c);
  const Values q = values(c.q), k = values(c.k), v = values(c.v);
  expect_close(g.dq, numeric_gradient([&](const Values& x) { return loss(c, x, k, v); }, q));
  expect_close(g.dk, numeric_gradient([&](const Values& x) { return loss(c, q, x, v); }, k));
  expect_close(g.dv, numeric_gradient([&](const Values& x) { return loss(c, q, k, x); }, v));
}

TEST(AttentionBackward, CutsTheHeadsOfAKvHeadInParts) {
  // G = 8, Hk = 2: 4 parts of 3 heads, cut at 0, 0, 1, 2, 3. dv of the only key is the sum of dy.
  Case c = attention_case({1}, 6, 2, 1);
  const float dy[6] = {1.0f, 0x1p24f, -0x1p24f, 3.0f, 4.0f, 5.0f};
  for (int h = 0; h < 6; ++h) c.dy.data<bf16>()[h] = numerics::to_bf16(dy[h]);
  EXPECT_EQ(value(run(c).dv, 0), (0.0f + 1.0f) + (0x1p24f - 0x1p24f));
  EXPECT_EQ(value(run(c).dv, 1), 12.0f);
  EXPECT_EQ(value(run(c, 2).dv, 0), 0.0f);  // one part: (1 + 2^24) - 2^24
}

TEST(AttentionBackward, RoundsDsAndPAndKeepsTheOrderOfItsChains) {
  // One sequence, 2 heads on one KV head, d = 4; with 8 leaves each head is a part of its own.
  const Case c = attention_case({5}, 2, 1, 4);
  const Gradients g = run(c);
  const float scale = static_cast<float>(1.4426950408889634 / 2.0);
  const auto at = [](const Tensor& t, std::int64_t row, int x) { return value(t, row * 4 + x); };
  float dq[4] = {};     // of position 4, head 1
  float dk[2][4] = {};  // of key 2, by head
  float dv[2][4] = {};
  for (int head = 0; head < 2; ++head) {
    for (std::int64_t position = 2; position < 5; ++position) {
      const std::int64_t row = position * 2 + head;
      float lane[4];
      for (int x = 0; x < 4; ++x) lane[x] = at(c.dy, row, x) * at(c.y, row, x);
      const float d_sum = (lane[0] + lane[1]) + (lane[2] + lane[3]);
      for (std::int64_t key = 0; key <= position; ++key) {
        float s = 0.0f, dp = 0.0f;
        for (int x = 0; x < 4; ++x) {
          s = std::fma(at(c.q, row, x), at(c.k, key, x), s);
          dp = std::fma(at(c.dy, row, x), at(c.v, key, x), dp);
        }
        const float p = numerics::exp2p(std::fma(s, scale, -value(c.lse, row)));
        const float ds = numerics::round_bf16(p * (dp - d_sum));
        for (int x = 0; x < 4; ++x) {
          if (row == 9) dq[x] = std::fma(ds, at(c.k, key, x), dq[x]);
          if (key != 2) continue;
          dk[head][x] = std::fma(ds, at(c.q, row, x), dk[head][x]);
          dv[head][x] = std::fma(numerics::round_bf16(p), at(c.dy, row, x), dv[head][x]);
        }
      }
    }
  }
  for (int x = 0; x < 4; ++x) {
    EXPECT_EQ(at(g.dq, 9, x), numerics::round_bf16(0.5f * dq[x]));
    EXPECT_EQ(at(g.dk, 2, x), numerics::round_bf16(0.5f * (dk[0][x] + dk[1][x])));
    EXPECT_EQ(at(g.dv, 2, x), numerics::round_bf16(dv[0][x] + dv[1][x]));
  }
}

TEST(AttentionBackwardInvariance, NeighboursInTheBatchDoNotMatter) {
  const Case c = attention_case({20, 33}, 4, 2, 8, Kind::kCancelling);
  const Gradients both = run(c);
  Case alone = attention_case({33}, 4, 2, 8, Kind::kCancelling);
  const auto copy = [](Tensor& out, const Tensor& from) {
    const std::int64_t skip = from.size() - out.size();
    std::memcpy(out.data<char>(),
                from.data<char>() + skip * static_cast<int>(size_of(from.dtype())),
                out.size_bytes());
  };
  copy(alone.q, c.q);
  copy(alone.k, c.k);
  copy(alone.v, c.v);
  copy(alone.dy, c.dy);
  copy(alone.y, c.y);
  copy(alone.lse, c.lse);
  const Gradients one = run(alone);
  Gradients tail = run(alone);
  copy(tail.dq, both.dq);
  copy(tail.dk, both.dk);
  copy(tail.dv, both.dv);
  EXPECT_TRUE(same_bits(one.dq, tail.dq));
  EXPECT_TRUE(same_bits(one.dk, tail.dk));
  EXPECT_TRUE(same_bits(one.dv, tail.dv));
}

TEST(AttentionBackwardTwin, OtherPartsGiveOtherBits) {
  Case c = attention_case({60}, 8, 1, 8);
  for (std::int64_t t = 0; t < 60; ++t) {  // heads 0 and 4 are large and cancel
    for (std::int64_t x = 0; x < 8; ++x) {
      const auto copy_to_4 = [&](Tensor& of) {
        *of.view().at<bf16>(t, 4, x) = *of.view().at<bf16>(t, 0, x);
      };
      copy_to_4(c.q);
      copy_to_4(c.y);
      bf16* dy = c.dy.view().at<bf16>(t, 0, x);
      *dy = numerics::to_bf16(numerics::to_f32(*dy) * 0x1p17f);
      *c.dy.view().at<bf16>(t, 4, x) = numerics::to_bf16(-numerics::to_f32(*dy));
    }
    *c.lse.view().at<float>(t, 4) = *c.lse.view().at<float>(t, 0);
  }
  const Gradients eight = run(c, 8);
  const Gradients one = run(c, 1);
  EXPECT_FALSE(same_bits(eight.dk, one.dk));
  EXPECT_FALSE(same_bits(eight.dv, one.dv));
  EXPECT_TRUE(same_bits(eight.dq, one.dq));
}

}  // namespace
}  // namespace rlk::test
