// Reference kernels that work row by row: embedding, residual_add, rms_norm, rope, swiglu.
#include <gtest/gtest.h>

#include <cmath>

#include "reference_gradient.h"
#include "rlk/kernels/reference/table.h"
#include "rlk/numerics/math.h"
#include "test_data.h"

namespace rlk::test {
namespace {

TEST(ReferenceTable, HasEveryOperator) {
  const KernelTable& table = reference_kernels();
  EXPECT_STREQ(table.backend, "reference");
#define RLK_OP(name, Args) EXPECT_EQ(table.name, &reference::name);
  RLK_OPS(RLK_OP)
#undef RLK_OP
}

TEST(Embedding, TurnsMinusZeroIntoZeroAndReportsTheFirstBadId) {
  TestExec exec;
  Tensor table = bf16_tensor({-0.0f, 1.0f, 2.0f, -3.0f});
  Tensor y(DType::kBF16, {4, 2});
  const TensorView rows_of_table = view(table.data<bf16>(), {2, 2});
  reference::embedding(exec, {y, rows_of_table, i32_tensor({0, 1, 2, -1})});
  EXPECT_EQ(y.data<bf16>()[0].bits, 0);
  EXPECT_EQ(value(y, 1), 1.0f);
  EXPECT_EQ(value(y, 3), -3.0f);
  EXPECT_EQ(exec.fault.row(), 2);
}

TEST(Embedding, BackwardAddsTokensOfARowInTheirOrder) {
  TestExec exec;
  Tensor dtable(DType::kF32, {2, 1});
  Tensor dy = bf16_tensor({1.0f, 0x1p30f, -0x1p30f, 5.0f});
  reference::embedding_backward(exec,
                                {dtable, view(dy.data<bf16>(), {4, 1}), i32_tensor({1, 1, 1, 0})});
  EXPECT_EQ(value(dtable, 0), 5.0f);
  EXPECT_EQ(value(dtable, 1), 0.0f);  // 1 is lost when 2^30 comes
}

TEST(CopyRows, MovesBytesMakesZeroRowsAndReportsTheFirstLargeValue) {
  TestExec exec;
  Tensor x = bf16_tensor({1.0f, -0.0f, 3.0f, 4.0f, 5.0f, 6.0f});
  Tensor y = bf16_tensor({9.0f, 9.0f, 9.0f, 9.0f, 9.0f, 9.0f, 9.0f, 9.0f});
  const std::vector<std::int64_t> from{2, -1, 0}, to{3, 0, 2};
  const CopyRowsArgs args{view(y.data<bf16>(), {4, 2}), view(x.data<bf16>(), {3, 2}),
                          view(from.data(), {3}), view(to.data(), {3}), true};
  reference::copy_rows(exec, args);
  EXPECT_TRUE(same_bits(y, bf16_tensor({0.0f, 0.0f, 9.0f, 9.0f, 1.0f, -0.0f, 5.0f, 6.0f})));
  EXPECT_EQ(exec.fault.row(), -1);
  x.data<bf16>()[0] = bf16{0x7fc0};
  reference::copy_rows(exec, args);
  EXPECT_EQ(exec.fault.row(), 2);
  x.data<bf16>()[5] = numerics::to_bf16(-0x1p56f);
  reference::copy_rows(exec, args);
  EXPECT_EQ(exec.fault.row(), 0);
}

TEST(ResidualAdd, RoundsOnceToNearestEvenAndMayAlias) {
  TestExec exec;
  Tensor a = bf16_tensor({1.0f, 1.0f, 3.0f});
  Tensor b = bf16_tensor({0x1p-8f, 0x1.8p-8f, -3.0f});
  const TensorView y = view(a.data<bf16>(), {1, 3});
  reference::residual_add(exec, {y, y, view(b.data<bf16>(), {1, 3})});
  EXPECT_EQ(value(a, 0), 1.0f);
  EXPECT_EQ(value(a, 1), 1.0f + 0x1p-7f);
  EXPECT_EQ(value(a, 2), 0.0f);
}

struct NormCase {
  Tensor x, w, dy;
  static constexpr float kEps = 1e-6f;
};

NormCase norm_case(std::int64_t tokens, std::int64_t heads, std::int64_t n, Kind kind) {
  return {random_tensor(DType::kBF16, {tokens, heads, n}, 1, kind),
          random_tensor(DType::kBF16, {n}, 2), random_tensor(DType::kBF16, {tokens, heads, n}, 3)};
}

Tensor run_norm(const NormCase& c, int lanes = 256, Tensor* q = nullptr) {
  Contract contract;
  contract.norm_lanes = lanes;
  TestExec exec(contract);
  Tensor y(DType::kBF16, {c.x.shape(0), c.x.shape(1), c.x.shape(2)});
  reference::rms_norm(exec, {y, q ? q->view() : TensorView{}, c.x, c.w, NormCase::kEps});
  EXPECT_EQ(exec.fault.row(), -1);
  return y;
}

TEST(RmsNorm, MatchesValuesComputedByHand) {
  TestExec exec;
  // s = 9 + 16 = 25, s / 2 + 12.5 = 25, q = 1/5: in f32 0x1.99999ap-3.
  Tensor x = bf16_tensor({3.0f, -4.0f});
  Tensor w = bf16_tensor({5.0f, 1.0f});
  Tensor y(DType::kBF16, {1, 1, 2});
  Tensor q(DType::kF32, {1, 1});
  reference::rms_norm(exec, {y, q, view(x.data<bf16>(), {1, 1, 2}), w, 12.5f});
  EXPECT_EQ(value(q, 0), 0x1.99999ap-3f);
  EXPECT_EQ(value(y, 0), 3.0f);
  EXPECT_EQ(value(y, 1), numerics::round_bf16(-0.8f));
}

TEST(RmsNorm, ReportsTheLowestRowWhoseSumIsNotFinite) {
  TestExec exec;
  Tensor x = random_tensor(DType::kBF16, {3, 2, 5}, 4);
  *x.view().at<bf16>(1, 1, 3) = bf16{0x7f00};  // its square overflows
  *x.view().at<bf16>(2, 0, 0) = bf16{0x7fc0};
  Tensor w = random_tensor(DType::kBF16, {5}, 5);
  Tensor y(DType::kBF16, {3, 2, 5});
  reference::rms_norm(exec, {y, {}, x, w, 1e-6f});
  EXPECT_EQ(exec.fault.row(), 3);
}

TEST(RmsNormInvariance, GivesTheSameBitsForAnyBatchSizeAndStride) {
  for (const Kind kind : kAllKinds) {
    const NormCase c = norm_case(6, 2, 300, kind);
    const Tensor y = run_norm(c);
    TestExec exec;
    for (std::int64_t t = 0; t < 6; ++t) {
      // Numbers 3 apart, rows in one batch of one token.
      std::vector<bf16> wide(3 * 2 * 300);
      TensorView x = view(wide.data(), {1, 2, 300});
      x.layout.stride = {0, 900, 3, 0};
      for (int i = 0; i < 600; ++i)
        wide[static_cast<std::size_t>(3 * i)] = c.x.data<bf16>()[600 * t + i];
      Tensor one(DType::kBF16, {1, 2, 300});
      reference::rms_norm(exec, {one, {}, x, c.w, NormCase::kEps});
      EXPECT_EQ(std::memcmp(one.data<bf16>(), y.data<bf16>() + 600 * t, 1200), 0);
    }
  }
}

TEST(RmsNormTwin, AnotherNumberOfLanesGivesOtherSums) {
  const NormCase c = norm_case(64, 1, 1000, Kind::kWide);
  Tensor q(DType::kF32, {64, 1});
  Tensor q_other(DType::kF32, {64, 1});
  run_norm(c, 256, &q);
  run_norm(c, 128, &q_other);
  EXPECT_FALSE(same_bits(q, q_other));
}

Values norm_in_double(const Values& x, const Values& w, std::size_t rows) {
  const std::size_t n = w.size();
  Values y(x.size());
  for (std::size_t r = 0; r < rows; ++r) {
    double s = 0.0;
    for (std::size_t k = 0; k < n; ++k) s += x[r * n + k] * x[r * n + k];
    const double q = 1.0 / std::sqrt(s / static_cast<double>(n) + NormCase::kEps);
    for (std::size_t k = 0; k < n; ++k) y[r * n + k] = x[r * n + k] * q * w[k];
  }
  return y;
}

TEST(RmsNorm, GradientsAgreeWithFiniteDifferences) {
  TestExec exec;
  const NormCase c = norm_case(5, 3, 17, Kind::kNormal);
  Tensor q(DType::kF32, {5, 3});
  run_norm(c, 256, &q);
  Tensor dx(DType::kBF16, {5, 3, 17});
  reference::rms_norm_backward(exec, {dx, c.dy, c.x, c.w, q});
  const Values dy = values(c.dy);
  expect_close(dx, numeric_gradient(
                       [&](const Values& x) { return dot(dy, norm_in_double(x, values(c.w), 15)); },
                       values(c.x)));

  Tensor partial(DType::kF32, {3, 17});
  reference::rms_norm_backward_weight(exec, {partial, c.dy, c.x, q, cu_seqlens({2, 0, 3})});
  Tensor dw(DType::kF32, {17});
  reference::merge_heads(exec, {dw, partial});
  expect_close(
      dw,
      numeric_gradient([&](const Values& w) { return dot(dy, norm_in_double(values(c.x), w, 15)); },
                       values(c.w)),
      1e-4);
}

Tensor norm_weight_gradient(const NormCase& c, const Tensor& q,
                            const std::vector<std::vector<std::int32_t>>& calls, int token_block) {
  Contract contract;
  contract.token_block = token_block;
  TestExec exec(contract);
  Tensor dw(DType::kF32, {c.x.shape(1), c.x.shape(2)});
  std::int64_t begin = 0;
  for (const auto& lengths : calls) {
    const std::int64_t end = begin + std::accumulate(lengths.begin(), lengths.end(), 0);
    reference::rms_norm_backward_weight(
        exec, {dw, rows(c.dy.view(), begin, end), rows(c.x.view(), begin, end),
               rows(q.view(), begin, end), cu_seqlens(lengths)});
    begin = end;
  }
  return dw;
}

TEST(RmsNormBackwardWeightInvariance, MicroBatchesGiveTheSameBits) {
  const NormCase c = norm_case(200, 2, 24, Kind::kCancelling);
  Tensor q(DType::kF32, {200, 2});
  run_norm(c, 256, &q);
  const Tensor once = norm_weight_gradient(c, q, {{100, 1, 99}}, 64);
  EXPECT_TRUE(same_bits(once, norm_weight_gradient(c, q, {{100}, {1, 99}}, 64)));
  EXPECT_TRUE(same_bits(once, norm_weight_gradient(c, q, {{100}, {1}, {99}}, 64)));
}

TEST(RmsNormBackwardWeightTwin, BlocksThatIgnoreSamplesGiveOtherBits) {
  const NormCase c = norm_case(200, 2, 24, Kind::kCancelling);
  Tensor q(DType::kF32, {200, 2});
  run_norm(c, 256, &q);
  const Tensor once = norm_weight_gradient(c, q, {{100, 1, 99}}, 64);
  EXPECT_FALSE(same_bits(once, norm_weight_gradient(c, q, {{200}}, 64)));
  EXPECT_FALSE(same_bits(once, norm_weight_gradient(c, q, {{100, 1, 99}}, 32)));
}

TEST(MergeHeads, FoldsInsideACutAndTreesOverCuts) {
  Contract contract;
  contract.leaves = 4;
  TestExec exec(contract);
  // Cuts of 6 heads at 0, 1, 3, 4, 6: (a) (b c) (d) (e f).
  Tensor partial = f32_tensor({1.0f, 0x1p24f, 1.0f, 1.0f, 1.0f, -0x1p24f});
  Tensor dw(DType::kF32, {1});
  reference::merge_heads(exec, {dw, view(partial.data<float>(), {6, 1})});
  const float expected = (1.0f + (0x1p24f + 1.0f)) + (1.0f + (1.0f + -0x1p24f));
  EXPECT_EQ(value(dw, 0), expected);
}

// cos and sin of p * theta^(-2i/d), f32.
void rope_tables(std::int64_t max_position, std::int64_t d, Tensor* cos, Tensor* sin) {
  *cos = Tensor(DType::kF32, {max_position, d / 2});
  *sin = Tensor(DType::kF32, {max_position, d / 2});
  for (std::int64_t p = 0; p < max_position; ++p) {
    for (std::int64_t i = 0; i < d / 2; ++i) {
      const double angle =
          static_cast<double>(p) *
          std::pow(10000.0, -2.0 * static_cast<double>(i) / static_cast<double>(d));
      *cos->view().at<float>(p, i) = static_cast<float>(std::cos(angle));
      *sin->view().at<float>(p, i) = static_cast<float>(std::sin(angle));
    }
  }
}

TEST(Rope, RotatesHalfSplitPairsInPlace) {
  TestExec exec;
  Tensor x = bf16_tensor({1.0f, 2.0f, 3.0f, 4.0f});
  Tensor cos = f32_tensor({0.0f, 1.0f});
  Tensor sin = f32_tensor({1.0f, 0.0f});
  const Tensor positions = i32_tensor({0});
  const TensorView y = view(x.data<bf16>(), {1, 1, 4});
  const RopeArgs args{y, y, view(cos.data<float>(), {1, 2}), view(sin.data<float>(), {1, 2}),
                      positions};
  reference::rope(exec, args);
  EXPECT_EQ(value(x, 0), -3.0f);  // pair (1, 3) turned by 90 degrees
  EXPECT_EQ(value(x, 2), 1.0f);
  EXPECT_EQ(value(x, 1), 2.0f);
  EXPECT_EQ(value(x, 3), 4.0f);
  reference::rope_backward(exec, args);
  EXPECT_EQ(value(x, 0), 1.0f);
  EXPECT_EQ(value(x, 2), 3.0f);
  EXPECT_EQ(exec.fault.row(), -1);
}

TEST(Rope, ReportsValuesOutsideTheRangeOfAttention) {
  TestExec exec;
  Tensor x(DType::kBF16, {2, 2, 4});
  *x.view().at<bf16>(1, 0, 2) = numerics::to_bf16(0x1p57f);
  Tensor cos, sin;
  rope_tables(2, 4, &cos, &sin);
  const Tensor positions = i32_tensor({0, 1});
  Tensor y(DType::kBF16, {2, 2, 4});
  reference::rope_backward(exec, {y, x, cos, sin, positions});
  EXPECT_EQ(exec.fault.row(), -1);
  reference::rope(exec, {y, x, cos, sin, positions});
  EXPECT_EQ(exec.fault.row(), 2);
}

TEST(Rope, GradientAgreesWithFiniteDifferences) {
  TestExec exec;
  const std::int64_t d = 6;
  Tensor x = random_tensor(DType::kBF16, {3, 2, d}, 6);
  Tensor dy = random_tensor(DType::kBF16, {3, 2, d}, 7);
  Tensor cos, sin;
  rope_tables(10, d, &cos, &sin);
  const std::vector<std::int32_t> positions = {9, 0, 4};
  Tensor dx(DType::kBF16, {3, 2, d});
  reference::rope_backward(exec, {dx, dy, cos, sin, i32_tensor(positions)});
  const auto loss = [&](const Values& in) {
    double sum = 0.0;
    for (std::size_t row = 0; row < 6; ++row) {
      for (std::size_t i = 0; i < 3; ++i) {
        const double angle =
            positions[row / 2] * std::pow(10000.0, -2.0 * static_cast<double>(i) / 6.0);
        const double x1 = in[6 * row + i];
        const double x2 = in[6 * row + i + 3];
        sum += values(dy)[6 * row + i] * (x1 * std::cos(angle) - x2 * std::sin(angle));
        sum += values(dy)[6 * row + i + 3] * (x2 * std::cos(angle) + x1 * std::sin(angle));
      }
    }
    return sum;
  };
  expect_close(dx, numeric_gradient(loss, values(x)));
}

TEST(Swiglu, GradientsAgreeWithFiniteDifferences) {
  TestExec exec;
  const Tensor g = random_tensor(DType::kBF16, {3, 11}, 8, Kind::kNormal, 3.0);
  const Tensor u = random_tensor(DType::kBF16, {3, 11}, 9);
  const Tensor dy = random_tensor(DType::kBF16, {3, 11}, 10);
  Tensor dg(DType::kBF16, {3, 11});
  Tensor du(DType::kBF16, {3, 11});
  reference::swiglu_backward(exec, {dg, du, dy, g, u});
  const auto loss = [&](const Values& gate, const Values& up) {
    double sum = 0.0;
    for (std::size_t i = 0; i < gate.size(); ++i) {
      sum += values(dy)[i] * gate[i] / (1.0 + std::exp(-gate[i])) * up[i];
    }
    return sum;
  };
  expect_close(dg,
               numeric_gradient([&](const Values& x) { return loss(x, values(u)); }, values(g)));
  expect_close(du,
               numeric_gradient([&](const Values& x) { return loss(values(g), x); }, values(u)));
}

TEST(Swiglu, MatchesValuesComputedByHand) {
  TestExec exec;
  Tensor g = bf16_tensor({0.0f, 1.0f, -200.0f, 200.0f});
  Tensor u = bf16_tensor({3.0f, 2.0f, 1.0f, 0.5f});
  Tensor y(DType::kBF16, {1, 4});
  reference::swiglu(exec, {y, view(g.data<bf16>(), {1, 4}), view(u.data<bf16>(), {1, 4})});
  EXPECT_EQ(value(y, 0), 0.0f);
  EXPECT_EQ(value(y, 1), numerics::round_bf16(2.0f * 0.7310586f));
  EXPECT_EQ(value(y, 2), 0.0f);  // exp(200) is infinite, the sigmoid +0
  EXPECT_EQ(value(y, 3), 100.0f);
}

}  // namespace
}  // namespace rlk::test
