// log_softmax and its gradient: values, the reference's bytes for every instruction set, thread
// count and batch, and twins with another sum.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "reference_gradient.h"
#include "rlk/kernels/reference/table.h"
#include "rlk/numerics/math.h"
#include "tests/kernels/backends.h"

namespace rlk::test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

struct Case {
  Tensor logits, dy;
  std::vector<SamplingParams> params = std::vector<SamplingParams>(1);

  std::int64_t rows() const { return logits.shape(0); }
  std::int64_t vocab_size() const { return logits.shape(1); }
};

Case make_case(std::int64_t rows, std::int64_t vocab_size, Kind of_dy = Kind::kNormal) {
  return {random_tensor(DType::kF32, {rows, vocab_size}, 1, Kind::kNormal, 4.0),
          random_tensor(DType::kF32, {rows, vocab_size}, 2, of_dy)};
}

// [y, dz as BF16 with three padded columns, dz as F32]
OpCall both(const Case& c) {
  return [&c](const KernelTable& kernels, Exec& exec) {
    const std::int64_t rows = c.rows(), v = c.vocab_size(), num_params = std::ssize(c.params);
    std::vector<Tensor> out;
    out.push_back(Tensor(DType::kF32, {rows, v}));
    out.push_back(Tensor(DType::kBF16, {rows, v + 3}));
    out.push_back(Tensor(DType::kF32, {rows, v}));
    std::fill_n(out[1].data<bf16>(), out[1].size(), bf16{0xffff});
    kernels.log_softmax(exec, {out[0], c.logits, c.params.data(), num_params});
    for (const std::size_t i : {1u, 2u}) {
      kernels.log_softmax_backward(exec, {out[i], c.logits, c.dy, c.params.data(), num_params});
    }
    return out;
  };
}

TEST(LogSoftmax, MatchesValuesComputedByHand) {
  TestExec exec;
  const SamplingParams plain;
  Tensor y(DType::kF32, {2, 3});
  const std::vector<float> logits = {1.0f, -0x1p31f, 1.0f, -1000.0f, 1000.0f, -0x1.8p30f};
  reference::log_softmax(exec, {y, view(logits.data(), {2, 3}), &plain, 1});
  const float expected[] = {-0.6931472f, -kInf, -0.6931472f, -2000.0f, 0.0f, -kInf};
  for (std::int64_t i = 0; i < 6; ++i) EXPECT_EQ(value(y, i), expected[i]) << i;
}

TEST(LogSoftmax, EveryTokenHasTheLogprobOfTheOperatorLogprob) {
  Case c = make_case(7, 50);
  c.params.assign(7, {});
  c.params[1].temperature = 0.3f;
  c.params[2].top_k = 5;
  c.params[3].top_p = 0.8f;
  c.params[4].min_p = 0.01f;
  c.params[5].temperature = 0.0f;
  const Outcome all = outcome(both(c), cpu_kernels(), {}, 2);
  for (std::int32_t j = 0; j < 50; ++j) {
    for (std::int64_t t = 0; t < 7; ++t) {
      TestExec exec;
      Tensor logp(DType::kF32, {1});
      cpu_kernels().logprob(exec, {logp,
                                   {},
                                   rows(ConstTensorView(c.logits), t, t + 1),
                                   i32_tensor({j}),
                                   &c.params[static_cast<std::size_t>(t)],
                                   1});
      const float expected = exec.fault.row() < 0 ? value(logp, 0) : -kInf;
      ASSERT_EQ(value(all.outputs[0], 50 * t + j), expected) << t << ", " << j;
    }
  }
}

// loss = sum of dy_j * log softmax(z / T)_j over the tokens that take part
double loss_in_double(const Values& logits, const Case& c, double temperature, double lowest) {
  double total = 0.0;
  const auto v = static_cast<std::size_t>(c.vocab_size());
  for (std::size_t t = 0; t < static_cast<std::size_t>(c.rows()); ++t) {
    double sum = 0.0;
    for (std::size_t j = t * v; j < (t + 1) * v; ++j) {
      if (logits[j] >= lowest) sum += std::exp(logits[j] / temperature);
    }
    for (std::size_t j = t * v; j < (t + 1) * v; ++j) {
      if (logits[j] < lowest) continue;
      total +=
          value(c.dy, static_cast<std::int64_t>(j)) * (logits[j] / temperature - std::log(sum));
    }
  }
  return total;
}

TEST(LogSoftmaxBackward, GradientAgreesWithFiniteDifferences) {
  Case c = make_case(4, 23);
  for (std::int64_t i = 5; i < c.logits.size(); i += 11) c.logits.data<float>()[i] = -0x1p31f;
  for (const double temperature : {1.0, 0.7}) {
    c.params[0].temperature = static_cast<float>(temperature);
    const Values expected = numeric_gradient(
        [&](const Values& x) { return loss_in_double(x, c, temperature, -0x1p20); },
        values(c.logits));
    const Outcome got = outcome(both(c), reference_kernels());
    expect_close(got.outputs[2], expected, 1e-5);
    for (std::int64_t i = 5; i < c.logits.size(); i += 11) {
      EXPECT_EQ(std::bit_cast<std::uint32_t>(value(got.outputs[2], i)), 0u);
    }
  }
}

TEST(LogSoftmaxBackward, LooksAtNoDyOfATokenThatTakesNoPart) {
  Case c = make_case(2, 20);
  c.params[0].top_k = 4;
  const Outcome plain = outcome(both(c), reference_kernels());
  for (std::int64_t i = 0; i < 40; ++i) {
    if (value(plain.outputs[0], i) == -kInf) c.dy.data<float>()[i] = std::nanf("");
  }
  expect_same(outcome(both(c), reference_kernels()), plain, "reference");
  expect_the_reference_everywhere(both(c), "NaN where no token takes part");
}

TEST(LogSoftmaxBackward, ReportsASumThatIsNotFinite) {
  Case c = make_case(3, 40);
  c.dy.data<float>()[2 * 40 + 17] = kInf;
  EXPECT_EQ(outcome(both(c), reference_kernels()).fault_row, 2);
  expect_the_reference_everywhere(both(c), "an infinite dy");
  c.logits.data<float>()[40 + 3] = std::nanf("");
  EXPECT_EQ(outcome(both(c), reference_kernels()).fault_row, 1);
  expect_the_reference_everywhere(both(c), "a logit that is NaN");
}

TEST(LogSoftmaxInvariance, EqualsTheReferenceForOddSizesAndAllData) {
  for (const std::int64_t v : {1, 2, 15, 16, 17, 31, 100, 255, 256, 257, 1000}) {
    for (const Kind kind : kAllKinds) {
      Case c = make_case(5, v, kind);
      expect_the_reference_everywhere(both(c), fmt::format("[5, {}]", v), {}, {1, 3});
      c.params[0].temperature = 0.7f;
      expect_the_reference_everywhere(both(c), fmt::format("[5, {}], T 0.7", v), {}, {2});
    }
  }
  expect_the_reference_everywhere(both(make_case(0, 16)), "no rows");
  expect_the_reference_everywhere(both(make_case(3, 8193, Kind::kCancelling)), "[3, 8193]");
  expect_the_reference_everywhere(both(make_case(1, 40003, Kind::kWide)), "[1, 40003]");
}

TEST(LogSoftmaxInvariance, EqualsTheReferenceWithMasksFiltersAndFarLogits) {
  Case c = make_case(24, 301, Kind::kCancelling);
  c.params.assign(24, {});
  for (std::size_t t = 0; t < 24; ++t) {
    float* row = c.logits.data<float>() + 301 * t;
    if (t % 6 == 1) c.params[t].top_k = 7;
    if (t % 6 == 2) c.params[t].top_p = 0.9f;
    if (t % 6 == 3) c.params[t].min_p = 0.001f;
    for (std::size_t j = 0; j < 301; ++j) {
      if (t % 6 == 4 && j % 3 == 0) row[j] = -0x1p31f;
      if (t % 6 == 5) row[j] += j % 2 == 0 ? 4096.0f : -5000.0f;
    }
  }
  expect_the_reference_everywhere(both(c), "masks, filters, far logits");
  for (const int lanes : {8, 16, 64}) {
    Contract contract;
    contract.norm_lanes = lanes;
    expect_the_reference_everywhere(both(c), fmt::format("{} lanes", lanes), contract, {2});
  }
}

TEST(LogSoftmaxInvariance, ARowDependsOnNothingButItself) {
  const std::int64_t v = 300;
  const Case all = make_case(257, v, Kind::kCancelling);
  const Outcome expected = outcome(both(all), cpu_kernels(), {}, 2);
  for (const std::int64_t n : {1, 2, 16, 17, 100, 256}) {
    Case c = make_case(n, v);
    for (std::int64_t i = 0; i < n; ++i) {
      const std::int64_t from = (i * 19 + n) % 257;
      std::copy_n(all.logits.data<float>() + v * from, v, c.logits.data<float>() + v * i);
      std::copy_n(all.dy.data<float>() + v * from, v, c.dy.data<float>() + v * i);
    }
    const Outcome got = outcome(both(c), cpu_kernels(), {}, 3);
    for (std::int64_t i = 0; i < n; ++i) {
      const std::int64_t from = (i * 19 + n) % 257;
      for (const std::size_t k : {0u, 2u}) {
        ASSERT_EQ(std::memcmp(got.outputs[k].data<float>() + v * i,
                              expected.outputs[k].data<float>() + v * from, 4 * v),
                  0);
      }
    }
  }
}

TEST(LogSoftmaxInvariance, TokensInAnyOrderHaveTheSameLogprobs) {
  const std::int64_t v = 777;
  const Case c = make_case(1, v);
  Case moved = c;
  for (std::int64_t j = 0; j < v; ++j) {
    moved.logits.data<float>()[j * 100 % v] = c.logits.data<float>()[j];
  }
  const Outcome before = outcome(both(c), cpu_kernels());
  const Outcome after = outcome(both(moved), cpu_kernels());
  for (std::int64_t j = 0; j < v; ++j) {
    ASSERT_EQ(value(after.outputs[0], j * 100 % v), value(before.outputs[0], j)) << j;
  }
}

// (z - max) - log(sum of exp(z - max)) with a sum in f32, from the first token or from the last.
TEST(LogSoftmaxTwin, AnF32SumOfShiftedExponentialsGivesOtherBytes) {
  const Case c = make_case(20, 1000);
  const auto naive = [&](bool reversed) {
    Tensor y(DType::kF32, {20, 1000});
    for (std::int64_t t = 0; t < 20; ++t) {
      const float* z = c.logits.data<float>() + 1000 * t;
      const float most = *std::max_element(z, z + 1000);
      float sum = 0.0f;
      for (std::int64_t j = 0; j < 1000; ++j)
        sum += numerics::exp(z[reversed ? 999 - j : j] - most);
      for (std::int64_t j = 0; j < 1000; ++j) {
        y.data<float>()[1000 * t + j] = (z[j] - most) - numerics::log(sum);
      }
    }
    return y;
  };
  const Tensor rising = naive(false);
  EXPECT_FALSE(same_bytes(rising, naive(true)));
  for (const Isa isa : isas()) {
    const Outcome right = outcome(both(c), cpu_kernels(isa));
    EXPECT_FALSE(same_bytes(right.outputs[0], rising));
    for (std::int64_t i = 0; i < rising.size(); ++i) {
      EXPECT_NEAR(value(right.outputs[0], i), value(rising, i), 1e-4f);
    }
  }
}

// s from the first token to the last, and in another number of lanes.
TEST(LogSoftmaxTwin, AnotherOrderOfTheSumOfDyGivesOtherGradients) {
  const Case c = make_case(20, 1000, Kind::kCancelling);
  for (const Isa isa : isas()) {
    const Outcome right = outcome(both(c), cpu_kernels(isa));
    for (const int lanes : {1, 64}) {
      Contract contract;
      contract.norm_lanes = lanes;
      const Outcome wrong = outcome(both(c), reference_kernels(), contract);
      EXPECT_TRUE(same_bytes(wrong.outputs[0], right.outputs[0]));
      EXPECT_FALSE(same_bytes(wrong.outputs[2], right.outputs[2])) << lanes;
    }
  }
}

}  // namespace
}  // namespace rlk::test
