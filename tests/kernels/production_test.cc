// The production kernels against the reference: near it, and no nearer. Their bits depend on how a
// batch is cut, as those of any engine do that picks its kernels by shape.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "attention_data.h"
#include "rlk/kernels/kernel_table.h"
#include "test_data.h"

namespace rlk {
namespace {

using test::f32_tensor;
using test::i32_tensor;
using test::Kind;
using test::random_tensor;
using test::same_bits;
using test::TestExec;

// |a - b| <= tolerance * (the largest |b| of the row)
testing::AssertionResult near(const Tensor& a, const Tensor& b, double tolerance) {
  const std::vector<double> x = test::values(a);
  const std::vector<double> y = test::values(b);
  if (x.size() != y.size()) return testing::AssertionFailure() << "other size";
  const std::int64_t n = std::max<std::int64_t>(1, b.shape(b.layout().rank - 1));
  for (std::size_t i = 0; i < x.size(); ++i) {
    const std::size_t row = i / static_cast<std::size_t>(n) * static_cast<std::size_t>(n);
    double scale = 0;
    for (std::size_t j = row; j < row + static_cast<std::size_t>(n); ++j) {
      scale = std::max(scale, std::fabs(y[j]));
    }
    if (!(std::fabs(x[i] - y[i]) <= tolerance * scale)) {
      return testing::AssertionFailure() << "element " << i << ": " << x[i] << " and " << y[i];
    }
  }
  return testing::AssertionSuccess();
}

Tensor rows_of(const Tensor& t, std::int64_t begin, std::int64_t end) {
  Tensor out(t.dtype(), {end - begin, t.shape(1)});
  const std::size_t row = t.size_bytes() / static_cast<std::size_t>(t.shape(0));
  std::memcpy(out.data<char>(), t.data<char>() + static_cast<std::size_t>(begin) * row,
              out.size_bytes());
  return out;
}

Tensor product(const KernelTable& kernels, const ConstTensorView& a, const ConstTensorView& b,
               const ConstTensorView& bias, DType dtype, bool packed, int threads = 1) {
  TestExec exec({}, threads);
  Tensor c(dtype, {a.shape(0), b.shape(0)});
  PackedWeight weight;
  GemmArgs args;
  args.c = c;
  args.a = a;
  args.b = b;
  args.bias = bias;
  if (packed) {
    kernels.pack_weight(exec, {&weight, b});
    args.packed_b = &weight;
  }
  kernels.gemm(exec, args);
  return c;
}

TEST(ProductionTable, HasEveryOperator) {
  const KernelTable& table = production_kernels();
  EXPECT_STREQ(table.backend, "production");
#define RLK_OP(name, Args) EXPECT_NE(table.name, nullptr) << #name;
  RLK_OPS(RLK_OP)
#undef RLK_OP
}

TEST(ProductionGemm, IsNearTheReferenceForAnyNumberOfRows) {
  for (const std::int64_t m : {1, 5, 11, 12, 33, 70, 300}) {
    for (const std::int64_t n : {1, 17, 64, 600}) {
      for (const std::int64_t k : {1, 16, 75, 192}) {
        const Tensor a = random_tensor(DType::kBF16, {m, k}, 1);
        const Tensor b = random_tensor(DType::kBF16, {n, k}, 2);
        const Tensor bias = random_tensor(DType::kBF16, {n}, 3);
        const bool odd = (m + n + k) % 2 != 0;
        const DType dtype = odd ? DType::kF32 : DType::kBF16;
        const ConstTensorView with = m % 3 == 0 ? bias.view() : ConstTensorView{};
        const Tensor expected = product(reference_kernels(), a, b, with, dtype, false);
        for (const int threads : {1, 2}) {
          EXPECT_TRUE(
              near(product(production_kernels(), a, b, with, dtype, odd, threads), expected, 1e-2))
              << m << "x" << n << "x" << k;
        }
      }
    }
  }
}

TEST(ProductionGemm, TakesTransposedWeightsAndPartsOfWiderMatrices) {
  const Tensor wide_a = random_tensor(DType::kBF16, {40, 100}, 1);
  const Tensor stored = random_tensor(DType::kBF16, {64, 48}, 2);
  ConstTensorView b = stored.view();
  std::swap(b.layout.shape[0], b.layout.shape[1]);
  std::swap(b.layout.stride[0], b.layout.stride[1]);
  const ConstTensorView a = columns(wide_a.view(), 10, 74);
  for (const bool packed : {false, true}) {
    EXPECT_TRUE(near(product(production_kernels(), a, b, {}, DType::kBF16, packed),
                     product(reference_kernels(), a, b, {}, DType::kBF16, false), 1e-2));
  }
}

TEST(ProductionGemm, IsNearTheReferenceInF32) {
  for (const std::int64_t m : {1, 33, 300}) {
    for (const std::int64_t n : {9, 600, 1100}) {
      const Tensor a = random_tensor(DType::kF32, {m, 75}, 1);
      const Tensor b = random_tensor(DType::kF32, {n, 75}, 2);
      const Tensor bias = random_tensor(DType::kF32, {n}, 3);
      const ConstTensorView with = n == 600 ? bias.view() : ConstTensorView{};
      const Tensor expected = product(reference_kernels(), a, b, with, DType::kF32, false);
      for (const int threads : {1, 2}) {
        EXPECT_TRUE(
            near(product(production_kernels(), a, b, with, DType::kF32, threads == 1, threads),
                 expected, 1e-4))
            << m << "x" << n;
      }
    }
  }
}

TEST(ProductionGemm, LeavesAnEmptyProductAlone) {
  const Tensor a(DType::kBF16, {0, 64});
  const Tensor b(DType::kBF16, {32, 64});
  EXPECT_EQ(product(production_kernels(), a, b, {}, DType::kBF16, true).size(), 0);
}

TEST(ProductionGemm, GivesOtherBitsForOtherNumbersOfRows) {
  const Tensor a = random_tensor(DType::kBF16, {64, 512}, 1, Kind::kCancelling);
  const Tensor b = random_tensor(DType::kBF16, {96, 512}, 2, Kind::kCancelling);
  const Tensor batch = product(production_kernels(), a, b, {}, DType::kF32, true);
  const Tensor alone =
      product(production_kernels(), rows(a.view(), 0, 1), b, {}, DType::kF32, true);
  EXPECT_FALSE(same_bits(alone, rows_of(batch, 0, 1)));
  EXPECT_FALSE(same_bits(product(cpu_kernels(), a, b, {}, DType::kF32, true), batch));
}

TEST(ProductionGemm, AddsWeightGradientsOntoWhatIsThere) {
  for (const std::int64_t tokens : {0, 1, 70, 1100}) {
    const DType storage = tokens == 70 ? DType::kF32 : DType::kBF16;
    const Tensor dy = random_tensor(storage, {tokens, 40}, 1);
    const Tensor x = random_tensor(storage, {tokens, 72}, 2);
    for (const int threads : {1, 2}) {
      TestExec exec({}, threads);
      Tensor dw = random_tensor(DType::kF32, {40, 72}, 3);
      Tensor expected = dw;
      Tensor chain(DType::kF32, {40, 72});
      Tensor open(DType::kF32, {40, 72});
      production_kernels().gemm_backward_weight(exec, {dw, chain, dy, x, {}});
      const std::vector<std::int64_t> ends = {tokens};
      reference_kernels().gemm_backward_weight(
          exec, {expected, open, dy, x, tokens > 0 ? view(ends.data(), {1}) : ConstTensorView{}});
      EXPECT_TRUE(near(dw, expected, 1e-4)) << tokens;
      EXPECT_TRUE(same_bits(chain, Tensor(DType::kF32, {40, 72})));
    }
  }
}

TEST(ProductionGemm, SumsBiasGradients) {
  TestExec exec({}, 2);
  const Tensor dy = random_tensor(DType::kBF16, {130, 75}, 1);
  const Tensor cu = test::cu_seqlens({100, 0, 30});
  Tensor a(DType::kF32, {75});
  Tensor b(DType::kF32, {75});
  production_kernels().bias_backward(exec, {a, dy, cu});
  reference_kernels().bias_backward(exec, {b, dy, cu});
  EXPECT_TRUE(near(a, b, 1e-4));
}

TEST(ProductionAttention, IsNearTheReference) {
  for (const std::int64_t d : {8, 16, 72, 128}) {
    const test::Batch batch = test::make_batch({1, 12, 150, 37, 0, 300}, 6, 2, d);
    const test::Output expected = test::run_packed(reference_kernels(), batch, {});
    for (const int threads : {1, 2}) {
      const test::Output out = test::run_packed(production_kernels(), batch, {}, threads);
      EXPECT_TRUE(near(out.y, expected.y, 2e-2)) << d;
      EXPECT_TRUE(near(out.lse, expected.lse, 1e-4)) << d;
    }
  }
}

// The last query of every sequence alone, over pages.
Tensor decode(const KernelTable& kernels, const test::Batch& b, std::int64_t page_size) {
  const std::int64_t num_seqs = std::ssize(b.lengths);
  const std::int64_t max_pages =
      (*std::max_element(b.lengths.begin(), b.lengths.end()) + page_size - 1) / page_size;
  Tensor table(DType::kI32, {num_seqs, max_pages});
  Tensor k(DType::kBF16, {num_seqs * max_pages * page_size, b.kv_heads, b.d});
  Tensor v = k;
  Tensor q(DType::kBF16, {num_seqs, b.heads, b.d});
  Tensor y = q;
  const std::size_t row = static_cast<std::size_t>(b.kv_heads * b.d) * sizeof(bf16);
  std::int64_t token = 0;
  for (std::int64_t s = 0; s < num_seqs; ++s) {
    for (std::int64_t p = 0; p < max_pages; ++p) {
      *table.view().at<std::int32_t>(s, p) =
          static_cast<std::int32_t>(num_seqs * max_pages - 1 - (s * max_pages + p));
    }
    for (std::int64_t i = 0; i < b.lengths[static_cast<std::size_t>(s)]; ++i, ++token) {
      const std::int64_t at =
          *table.view().at<std::int32_t>(s, i / page_size) * page_size + i % page_size;
      std::memcpy(k.view().at<bf16>(at), b.k.view().at<bf16>(token), row);
      std::memcpy(v.view().at<bf16>(at), b.v.view().at<bf16>(token), row);
    }
    std::memcpy(q.view().at<bf16>(s), b.q.view().at<bf16>(token - 1),
                static_cast<std::size_t>(b.heads * b.d) * sizeof(bf16));
  }
  TestExec exec({}, 2);
  const Tensor offsets = test::cu_seqlens(std::vector<std::int32_t>(b.lengths.size(), 1));
  kernels.attention(exec, {y, {}, q, {k, v, table, {}, page_size}, offsets, i32_tensor(b.lengths)});
  EXPECT_EQ(exec.fault.row(), -1);
  return y;
}

Tensor last_rows(const test::Batch& b, const Tensor& y) {
  Tensor out(DType::kBF16, {std::ssize(b.lengths), b.heads, b.d});
  std::int64_t end = 0;
  for (std::int64_t s = 0; s < out.shape(0); ++s) {
    end += b.lengths[static_cast<std::size_t>(s)];
    std::memcpy(out.view().at<bf16>(s), y.view().at<bf16>(end - 1),
                static_cast<std::size_t>(b.heads * b.d) * sizeof(bf16));
  }
  return out;
}

TEST(ProductionAttention, DecodesNearThePrefillButWithOtherBits) {
  const test::Batch batch = test::make_batch({1, 40, 200, 333}, 4, 2, 64);
  const Tensor prefill = last_rows(batch, test::run_packed(production_kernels(), batch, {}).y);
  for (const std::int64_t page_size : {8, 16}) {
    const Tensor y = decode(production_kernels(), batch, page_size);
    EXPECT_TRUE(near(y, decode(reference_kernels(), batch, page_size), 2e-2));
    EXPECT_TRUE(near(y, prefill, 2e-2));
    EXPECT_FALSE(same_bits(y, prefill));
  }
}

TEST(ProductionAttention, ReportsScoresThatAreNoNumbers) {
  test::Batch batch = test::make_batch({20}, 2, 1, 16);
  *batch.q.view().at<bf16>(7, 1, 3) = bf16{0x7fc0};
  TestExec exec;
  Tensor y(DType::kBF16, {20, 2, 16});
  const Tensor offsets = test::cu_seqlens({20});
  production_kernels().attention(exec, {y,
                                        {},
                                        batch.q,
                                        {batch.k, batch.v, {}, rows(offsets.view(), 0, 1), 0},
                                        offsets,
                                        i32_tensor({20})});
  EXPECT_EQ(exec.fault.row(), 7 * 2 + 1);
}

TEST(ProductionAttention, HasTheGradientsOfTheReference) {
  const test::Batch b = test::make_batch({1, 12, 100}, 4, 2, 32);
  const test::Output f = test::run_packed(reference_kernels(), b, {});
  const Tensor dy = random_tensor(DType::kBF16, {b.num_tokens(), b.heads, b.d}, 9);
  const Tensor cu = test::cu_seqlens(b.lengths);
  std::vector<Tensor> out;
  for (const KernelTable* kernels : {&reference_kernels(), &production_kernels()}) {
    TestExec exec({}, 2);
    Tensor dq = b.q, dk = b.k, dv = b.v;
    kernels->attention_backward(exec, {dq, dk, dv, dy, f.y, b.q, b.k, b.v, f.lse, cu});
    for (Tensor* t : {&dq, &dk, &dv}) out.push_back(*t);
  }
  // Elements of a row differ in size: the error is that of the sums' largest terms.
  for (std::size_t i = 0; i < 3; ++i) EXPECT_TRUE(near(out[3 + i], out[i], 5e-2)) << i;
}

TEST(ProductionRows, NormsAreNearTheReference) {
  for (const std::int64_t heads : {1, 3}) {
    for (const std::int64_t n : {16, 72, 300}) {
      TestExec exec({}, 2);
      const Tensor x = random_tensor(DType::kBF16, {200, heads, n}, 1);
      const Tensor dy = random_tensor(DType::kBF16, {200, heads, n}, 2);
      const Tensor w = random_tensor(DType::kBF16, {n}, 3);
      const Tensor cu = test::cu_seqlens({130, 70});
      std::vector<Tensor> out;
      for (const KernelTable* kernels : {&reference_kernels(), &production_kernels()}) {
        Tensor y = x, dx = x;
        Tensor q(DType::kF32, {200, heads});
        Tensor dw(DType::kF32, {heads, n});
        Tensor merged(DType::kF32, {n});
        kernels->rms_norm(exec, {y, q, x, w, 1e-6f});
        kernels->rms_norm_backward(exec, {dx, dy, x, w, q});
        kernels->rms_norm_backward_weight(exec, {dw, dy, x, q, cu});
        kernels->merge_heads(exec, {merged, dw});
        for (Tensor* t : {&y, &dx, &q, &dw, &merged}) out.push_back(*t);
      }
      for (std::size_t i = 0; i < 5; ++i) {
        EXPECT_TRUE(near(out[5 + i], out[i], i < 2 ? 2e-2 : 1e-4)) << i << " of " << n;
      }
      EXPECT_EQ(exec.fault.row(), -1);
    }
  }
}

TEST(ProductionLogprob, IsNearTheReferenceWithMasksFiltersAndIgnoredRows) {
  constexpr std::int64_t kRows = 8;
  for (const std::int64_t vocab : {5, 16, 1000}) {
    Tensor logits = random_tensor(DType::kF32, {kRows, vocab}, 1, Kind::kNormal, 5.0);
    *logits.view().at<float>(2, 1) = -2e9f;  // a mask
    std::vector<std::int32_t> ids(kRows);
    std::vector<SamplingParams> params(kRows);
    for (std::size_t t = 0; t < kRows; ++t) {
      const float* row = logits.view().at<float>(static_cast<std::int64_t>(t));
      ids[t] = static_cast<std::int32_t>(std::max_element(row, row + vocab) - row);
    }
    ids[1] = kIgnoreIndex;
    params[3].temperature = 0.5f;
    params[4].temperature = 0.0f;
    params[5].top_k = 3;
    params[6].top_p = 0.9f;
    const Tensor targets = i32_tensor(ids);
    const Tensor g = random_tensor(DType::kF32, {kRows}, 4);
    const Tensor g_entropy = random_tensor(DType::kF32, {kRows}, 5);
    TestExec exec({}, 2);
    std::vector<Tensor> out;
    for (const KernelTable* kernels : {&reference_kernels(), &production_kernels()}) {
      Tensor logp(DType::kF32, {kRows, 1});
      Tensor entropy(DType::kF32, {kRows});
      Tensor dz = random_tensor(DType::kBF16, {kRows, vocab + 11}, 7);
      kernels->logprob(exec, {logp, entropy, logits, targets, params.data(), kRows});
      kernels->logprob_backward(exec, {dz, logits, targets, g, g_entropy, params.data(), kRows});
      for (Tensor* t : {&logp, &entropy, &dz}) out.push_back(*t);
    }
    EXPECT_EQ(exec.fault.row(), -1);
    for (std::int64_t t = 0; t < kRows; ++t) {  // near 0 the sum's own rounding is what counts
      const double expected = test::value(out[0], t);
      EXPECT_NEAR(test::value(out[3], t), expected, 1e-5 + 1e-5 * std::fabs(expected));
    }
    EXPECT_TRUE(near(out[4], out[1], 1e-5));
    EXPECT_TRUE(near(out[5], out[2], 2e-2));
  }
}

TEST(ProductionLogprob, ReportsTheRowsThatAreErrors) {
  const float inf = std::numeric_limits<float>::infinity();
  struct Case {
    std::vector<float> logits;
    std::int32_t target;
  };
  for (const Case& bad :
       {Case{{1, std::nanf(""), 2}, 0}, Case{{1, inf, 2}, 0}, Case{{1, -inf, 2}, 0},
        Case{{1, 2e9f, 2}, 0}, Case{{1, -2e9f, 2}, 1}, Case{{1, 2, 3}, 3}, Case{{1, 2, 3}, -1},
        Case{{-2e9f, -2e9f, -3e9f}, 0}}) {
    TestExec exec;
    Tensor logits(DType::kF32, {2, 3});
    std::copy(bad.logits.begin(), bad.logits.end(), logits.data<float>() + 3);
    Tensor logp(DType::kF32, {2});
    const SamplingParams params;
    production_kernels().logprob(exec, {logp, {}, logits, i32_tensor({0, bad.target}), &params, 1});
    EXPECT_EQ(exec.fault.row(), 1);
  }
}

TEST(ProductionGradNorm, IsNearTheReference) {
  TestExec exec({}, 2);
  const Tensor a = random_tensor(DType::kF32, {70, 1000}, 1);
  const Tensor b = random_tensor(DType::kF32, {7}, 2);
  const ConstTensorView grads[] = {a, b};
  float expected, norm;
  reference_kernels().grad_norm(exec, {&expected, grads, 2});
  production_kernels().grad_norm(exec, {&norm, grads, 2});
  EXPECT_NEAR(norm, expected, 1e-6 * static_cast<double>(expected));
}

}  // namespace
}  // namespace rlk
