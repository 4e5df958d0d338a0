// Reference kernels of matrix products and their weight and bias gradients.
#include <gtest/gtest.h>

#include "reference_gradient.h"
#include "rlk/kernels/reference/table.h"
#include "rlk/numerics/sums.h"
#include "test_data.h"

namespace rlk::test {
namespace {

using Segments = std::array<std::int64_t, 3>;

GemmArgs product_args(const TensorView& c, const ConstTensorView& a, const ConstTensorView& b) {
  GemmArgs args;
  args.c = c;
  args.a = a;
  args.b = b;
  return args;
}

struct Product {
  std::int64_t m, n, k;
  Tensor a, b;
};

Product product(std::int64_t m, std::int64_t n, std::int64_t k, Kind kind = Kind::kCancelling) {
  return {m, n, k, random_tensor(DType::kBF16, {m, k}, 11, kind),
          random_tensor(DType::kBF16, {n, k}, 12, Kind::kNormal)};
}

Tensor run(const Product& p, int leaves = 0, Segments segments = {}, DType dtype = DType::kF32) {
  Contract contract;
  if (leaves > 0) contract.leaves = leaves;
  TestExec exec(contract);
  Tensor c(dtype, {p.m, p.n});
  GemmArgs args = product_args(c, p.a, p.b);
  args.leaf_tree = leaves > 0;
  args.segments = segments[0] > 0 ? segments : Segments{p.k, 0, 0};
  reference::gemm(exec, args);
  return c;
}

TEST(Gemm, IsOneChainOfFmaInRisingOrder) {
  TestExec exec;
  Tensor a = bf16_tensor({0x1p30f, 1.0f, -0x1p30f, 3.0f});
  Tensor b = bf16_tensor({1.0f, 1.0f, 1.0f, 1.0f});
  Tensor c(DType::kF32, {1, 1});
  const ConstTensorView row_a = view(a.data<bf16>(), {1, 4});
  const ConstTensorView row_b = view(b.data<bf16>(), {1, 4});
  reference::gemm(exec, product_args(c, row_a, row_b));
  EXPECT_EQ(value(c, 0), 3.0f);  // the 1 is lost in 2^30
}

TEST(Gemm, AddsTheBiasAfterTheTreeAndRoundsOnce) {
  TestExec exec;
  Tensor a = bf16_tensor({1.0f});
  Tensor b = bf16_tensor({1.0f, -0.0f});
  Tensor bias = bf16_tensor({0x1.8p-8f, -0.0f});
  Tensor c(DType::kBF16, {1, 2});
  GemmArgs args = product_args(c, view(a.data<bf16>(), {1, 1}), view(b.data<bf16>(), {2, 1}));
  args.bias = bias;
  reference::gemm(exec, args);
  EXPECT_EQ(value(c, 0), 1.0f + 0x1p-7f);
  EXPECT_EQ(c.data<bf16>()[1].bits, 0);  // a zero sum is +0, and +0 + -0 = +0
}

TEST(Gemm, GivesZeroForAnEmptySumAndNothingForZeroRows) {
  TestExec exec;
  const bf16 none{};
  Tensor c = f32_tensor({7.0f, 7.0f});
  for (const bool tree : {false, true}) {
    c = f32_tensor({7.0f, 7.0f});
    GemmArgs args =
        product_args(view(c.data<float>(), {1, 2}), view(&none, {1, 0}), view(&none, {2, 0}));
    args.leaf_tree = tree;
    args.segments = {0, 0, 0};
    reference::gemm(exec, args);
    EXPECT_EQ(value(c, 0), 0.0f);
    args.c = view(c.data<float>(), {0, 2});
    args.a = view(&none, {0, 0});
    reference::gemm(exec, args);
  }
}

TEST(Gemm, LeafTreeIsTheTreeOverItsLeaves) {
  const Product p = product(3, 4, 201);
  const Tensor c = run(p, 4);
  const Segments segments{96, 48, 57};
  const Tensor fused = run(p, 4, segments);
  for (std::int64_t m = 0; m < 3; ++m) {
    for (std::int64_t n = 0; n < 4; ++n) {
      const numerics::Strided a{p.a.view().at<bf16>(m)};
      const numerics::Strided b{p.b.view().at<bf16>(n)};
      EXPECT_EQ(*c.view().at<float>(m, n), numerics::leaf_tree(a, b, 201, 4));
      // Bounds of 96: 0 16 48 64 96; of 48: 0 0 16 32 48; of 57: 0 16 32 48 57.
      const std::int64_t bounds[3][5] = {
          {0, 16, 48, 64, 96}, {96, 96, 112, 128, 144}, {144, 160, 176, 192, 201}};
      float leaf[4] = {};
      for (int i = 0; i < 4; ++i) {
        for (const auto& bound : bounds) {
          leaf[i] = numerics::chain(leaf[i], a, b, bound[i], bound[i + 1]);
        }
      }
      const float expected = (leaf[0] + leaf[1]) + (leaf[2] + leaf[3]);
      EXPECT_EQ(*fused.view().at<float>(m, n), expected);
    }
  }
}

TEST(Gemm, ReadsAnyStrides) {
  const Product p = product(5, 7, 33, Kind::kMixed);
  Tensor transposed(DType::kBF16, {33, 7});
  for (std::int64_t n = 0; n < 7; ++n) {
    for (std::int64_t k = 0; k < 33; ++k) {
      *transposed.view().at<bf16>(k, n) = *p.b.view().at<bf16>(n, k);
    }
  }
  ConstTensorView b = transposed.view();
  std::swap(b.layout.shape[0], b.layout.shape[1]);
  std::swap(b.layout.stride[0], b.layout.stride[1]);
  TestExec exec;
  Tensor c(DType::kF32, {5, 7});
  reference::gemm(exec, product_args(c, p.a, b));
  EXPECT_TRUE(same_bits(c, run(p)));
}

TEST(GemmInvariance, RowsDoNotDependOnTheirBatch) {
  for (const Kind kind : kAllKinds) {
    const Product p = product(9, 6, 130, kind);
    const Tensor all = run(p, 8);
    TestExec exec;
    for (std::int64_t m = 0; m < 9; ++m) {
      Tensor one(DType::kF32, {1, 6});
      GemmArgs args = product_args(one, rows(p.a.view(), m, m + 1), p.b);
      args.leaf_tree = true;
      args.segments = {130, 0, 0};
      reference::gemm(exec, args);
      EXPECT_EQ(std::memcmp(one.data<float>(), all.view().at<float>(m), 24), 0);
    }
  }
}

TEST(GemmInvariance, RanksThatOwnASubtreeAddUpToTheWholeTree) {
  const Product p = product(8, 8, 256);
  const Tensor whole = run(p, 8);
  TestExec exec([] {
    Contract contract;
    contract.leaves = 4;
    return contract;
  }());
  Tensor sum(DType::kF32, {8, 8});
  for (const std::int64_t begin : {0, 128}) {
    Tensor part(DType::kF32, {8, 8});
    GemmArgs args = product_args(part, columns(p.a.view(), begin, begin + 128),
                                 columns(p.b.view(), begin, begin + 128));
    args.leaf_tree = true;
    args.segments = {128, 0, 0};
    reference::gemm(exec, args);
    for (std::int64_t i = 0; i < 64; ++i) sum.data<float>()[i] += part.data<float>()[i];
  }
  EXPECT_TRUE(same_bits(sum, whole));
}

TEST(GemmTwin, OtherLeavesAndSegmentsGiveOtherBits) {
  const Product p = product(8, 8, 256);
  const Tensor eight = run(p, 8);
  EXPECT_FALSE(same_bits(eight, run(p)));
  EXPECT_FALSE(same_bits(eight, run(p, 4)));
  EXPECT_FALSE(same_bits(eight, run(p, 8, {128, 64, 64})));
  EXPECT_TRUE(same_bits(run(p), run(p, 1)));
}

TEST(PackWeight, KeepsNothing) {
  TestExec exec;
  const Tensor w = random_tensor(DType::kBF16, {3, 5}, 13);
  PackedWeight packed;
  packed.owner = &packed;
  reference::pack_weight(exec, {&packed, w});
  EXPECT_EQ(packed.owner, nullptr);
  EXPECT_EQ(packed.n, 3);
  EXPECT_EQ(packed.k, 5);
}

struct WeightGradient {
  Tensor dw, chain;
};

// calls: offsets at which the batch is cut; group_ends: absolute token offsets.
WeightGradient weight_gradient(const Tensor& dy, const Tensor& x,
                               const std::vector<std::int64_t>& calls,
                               const std::vector<std::int64_t>& group_ends) {
  TestExec exec;
  WeightGradient out{Tensor(DType::kF32, {dy.shape(1), x.shape(1)}),
                     Tensor(DType::kF32, {dy.shape(1), x.shape(1)})};
  std::int64_t begin = 0;
  for (const std::int64_t end : calls) {
    std::vector<std::int64_t> ends;
    for (const std::int64_t g : group_ends) {
      if (g > begin && g <= end) ends.push_back(g - begin);
    }
    const auto num_ends = static_cast<std::int64_t>(ends.size());
    reference::gemm_backward_weight(
        exec, {out.dw, out.chain, rows(dy.view(), begin, end), rows(x.view(), begin, end),
               view(ends.data(), {num_ends})});
    begin = end;
  }
  return out;
}

TEST(GemmBackwardWeight, ClosesAGroupByAddingItsChain) {
  const Tensor dy = bf16_tensor({1.0f, 1.0f, 1.0f, 1.0f});
  const Tensor x = bf16_tensor({0x1p24f, 1.0f, -0x1p24f, 5.0f});
  const auto column = [](const Tensor& t) {
    Tensor out(DType::kBF16, {4, 1});
    std::memcpy(out.data<bf16>(), t.data<bf16>(), 8);
    return out;
  };
  const WeightGradient g = weight_gradient(column(dy), column(x), {4}, {1, 3});
  EXPECT_EQ(value(g.dw, 0), 1.0f);  // 2^24 + (1 - 2^24), where one chain would give 0
  EXPECT_EQ(value(g.chain, 0), 5.0f);
}

TEST(GemmBackwardWeightInvariance, MicroBatchesGiveTheSameBits) {
  const Tensor dy = random_tensor(DType::kBF16, {90, 5}, 14, Kind::kWide);
  const Tensor x = random_tensor(DType::kBF16, {90, 7}, 15, Kind::kMixed);
  const WeightGradient once = weight_gradient(dy, x, {90}, {30, 71});
  for (const std::vector<std::int64_t>& calls :
       {std::vector<std::int64_t>{10, 30, 90}, {29, 31, 71, 90}, {1, 2, 90}}) {
    const WeightGradient cut = weight_gradient(dy, x, calls, {30, 71});
    EXPECT_TRUE(same_bits(once.dw, cut.dw));
    EXPECT_TRUE(same_bits(once.chain, cut.chain));
  }
}

TEST(GemmBackwardWeightTwin, OtherGroupsGiveOtherBits) {
  const Tensor dy = random_tensor(DType::kBF16, {90, 5}, 14, Kind::kWide);
  const Tensor x = random_tensor(DType::kBF16, {90, 7}, 15, Kind::kNormal);
  const WeightGradient once = weight_gradient(dy, x, {90}, {30, 90});
  EXPECT_FALSE(same_bits(once.dw, weight_gradient(dy, x, {90}, {90}).dw));
  EXPECT_FALSE(same_bits(once.dw, weight_gradient(dy, x, {90}, {31, 90}).dw));
}

TEST(BiasBackward, AddsBlocksOfEverySample) {
  Contract contract;
  contract.token_block = 2;
  TestExec exec(contract);
  // Samples of 3 and 1 tokens: blocks (2^24, 1), (1), (1): 2^24 + 1 is 2^24 three times.
  const Tensor dy = bf16_tensor({0x1p24f, 1.0f, 1.0f, 1.0f});
  Tensor dbias(DType::kF32, {1});
  reference::bias_backward(exec, {dbias, view(dy.data<bf16>(), {4, 1}), cu_seqlens({3, 1})});
  EXPECT_EQ(value(dbias, 0), 0x1p24f);
  // Samples of 1 and 3 tokens: blocks (2^24), (1, 1), (1); the last add is a tie, to even.
  dbias.fill_zero();
  reference::bias_backward(exec, {dbias, view(dy.data<bf16>(), {4, 1}), cu_seqlens({1, 3})});
  EXPECT_EQ(value(dbias, 0), 0x1p24f + 4.0f);
}

TEST(Gemm, GradientsAgreeWithFiniteDifferences) {
  // y = x w^T + bias; dx through the transposed view of w, with a fused leaf tree.
  TestExec exec;
  const std::int64_t tokens = 4, n = 70, k = 6;
  const Tensor x = random_tensor(DType::kBF16, {tokens, k}, 16);
  const Tensor w = random_tensor(DType::kBF16, {n, k}, 17);
  const Tensor dy = random_tensor(DType::kBF16, {tokens, n}, 18);
  const auto loss = [&](const Values& xs, const Values& ws) {
    double sum = 0.0;
    for (std::size_t t = 0; t < 4; ++t) {
      for (std::size_t i = 0; i < 70; ++i) {
        double y = 0.0;
        for (std::size_t j = 0; j < 6; ++j) y += xs[t * 6 + j] * ws[i * 6 + j];
        sum += value(dy, static_cast<std::int64_t>(t * 70 + i)) * y;
      }
    }
    return sum;
  };
  ConstTensorView w_transposed = w.view();
  std::swap(w_transposed.layout.shape[0], w_transposed.layout.shape[1]);
  std::swap(w_transposed.layout.stride[0], w_transposed.layout.stride[1]);
  Tensor dx(DType::kBF16, {tokens, k});
  GemmArgs args = product_args(dx, dy, w_transposed);
  args.leaf_tree = true;
  args.segments = {32, 16, 22};
  reference::gemm(exec, args);
  expect_close(dx,
               numeric_gradient([&](const Values& in) { return loss(in, values(w)); }, values(x)));
  const WeightGradient g = weight_gradient(dy, x, {4}, {3, 4});
  expect_close(g.dw,
               numeric_gradient([&](const Values& in) { return loss(values(x), in); }, values(w)),
               1e-5);
  Tensor dbias(DType::kF32, {n});
  reference::bias_backward(exec, {dbias, dy, cu_seqlens({4})});
  Values columns(70);
  for (std::size_t i = 0; i < 280; ++i) columns[i % 70] += values(dy)[i];
  expect_close(dbias, columns, 1e-6);
}

}  // namespace
}  // namespace rlk::test
