// logprob, its gradient and sampling of the CPU backend against the reference, byte for byte, for
// every instruction set of this machine and several thread counts.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "rlk/numerics/log_sum_exp.h"
#include "tests/kernels/backends.h"

namespace rlk::test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

enum class Shape {
  kModel,   // what a language model gives: a few logits far above the others
  kFlat,    // all of nearly the same size
  kMasked,  // many columns masked by a large negative number
  kFar,     // around the 2^12 where n and f come from f64, and far beyond
  kHuge,    // up to 2^30 of both signs
};
constexpr Shape kAllShapes[] = {Shape::kModel, Shape::kFlat, Shape::kMasked, Shape::kFar,
                                Shape::kHuge};

float logit(Rng& rng, Shape shape) {
  const double x = rng.normal();
  switch (shape) {
    case Shape::kModel: return static_cast<float>(rng.below(50) == 0 ? 20.0 + 5.0 * x : 4.0 * x);
    case Shape::kFlat: return static_cast<float>(-3.0 + 0.01 * x);
    case Shape::kMasked: return rng.below(3) == 0 ? static_cast<float>(3.0 * x) : -1e30f;
    case Shape::kFar: {
      const double sign = rng.below(4) == 0 ? -1.0 : 1.0;
      return static_cast<float>(sign * (4096.0 + 0.01 * x));
    }
    case Shape::kHuge: return static_cast<float>(std::ldexp(rng.uniform() - 0.5, 31));
  }
  return 0.0f;
}

struct Case {
  Tensor logits, targets, g, g_entropy;
  std::vector<SamplingParams> params;
  std::vector<SampleKey> keys;
};

Case make_case(std::int64_t rows, std::int64_t vocab, Shape shape, const SamplingParams& params,
               std::uint64_t seed = 1) {
  Rng rng(seed);
  Case c{Tensor(DType::kF32, {rows, vocab}), {}, Tensor(DType::kF32, {rows}),
         Tensor(DType::kF32, {rows}),        {}, {}};
  std::vector<std::int32_t> targets;
  for (std::int64_t t = 0; t < rows; ++t) {
    float* row = c.logits.data<float>() + t * vocab;
    for (std::int64_t j = 0; j < vocab; ++j) row[j] = logit(rng, shape);
    std::int32_t target = static_cast<std::int32_t>(rng.below(vocab));
    if (row[target] < -1e9f) row[target] = 1.0f;
    if (t % 7 == 6) target = kIgnoreIndex;
    targets.push_back(target);
    c.g.data<float>()[t] = t % 5 == 4 ? 0.0f : static_cast<float>(rng.normal());
    c.g_entropy.data<float>()[t] = t % 3 == 2 ? 0.0f : static_cast<float>(0.1 * rng.normal());
    c.params.push_back(params);
    c.keys.push_back({rng.next(), rng.next(), static_cast<std::uint32_t>(t)});
  }
  c.targets = i32_tensor(targets);
  return c;
}

// Forward with and without entropy, backward with and without it, and a draw.
OpCall every_op(const Case& c) {
  return [&c](const KernelTable& kernels, Exec& exec) {
    const std::int64_t rows = c.logits.shape(0), vocab = c.logits.shape(1);
    const std::int64_t num_params = std::ssize(c.params);
    std::vector<Tensor> out;
    for (int i = 0; i < 3; ++i) out.push_back(Tensor(DType::kF32, {rows}));
    for (int i = 0; i < 2; ++i) {
      out.push_back(Tensor(DType::kBF16, {rows, vocab + 5}));
      std::fill_n(out.back().data<bf16>(), out.back().size(), bf16{0xffff});
    }
    out.push_back(Tensor(DType::kI32, {rows}));
    kernels.logprob(exec, {out[0], out[1], c.logits, c.targets, c.params.data(), num_params});
    kernels.logprob(exec, {out[2], {}, c.logits, c.targets, c.params.data(), num_params});
    kernels.logprob_backward(
        exec, {out[3], c.logits, c.targets, c.g, c.g_entropy, c.params.data(), num_params});
    kernels.logprob_backward(exec,
                             {out[4], c.logits, c.targets, c.g, {}, c.params.data(), num_params});
    if (num_params == rows) {
      kernels.sample(exec, {out[5], c.logits, c.params.data(), c.keys.data()});
    }
    return out;
  };
}

std::string label(std::int64_t rows, std::int64_t vocab, Shape shape) {
  return fmt::format("[{}, {}] shape {}", rows, vocab, static_cast<int>(shape));
}

TEST(LogprobInvariance, EqualsTheReferenceForEveryVocabularyAndShapeOfRow) {
  for (const Shape shape : kAllShapes) {
    for (const std::int64_t vocab : {1, 2, 15, 16, 17, 31, 64, 100, 259, 1000}) {
      for (const float temperature : {1.0f, 0.7f}) {
        SamplingParams params;
        params.temperature = temperature;
        const Case c = make_case(9, vocab, shape, params);
        expect_the_reference_everywhere(every_op(c), label(9, vocab, shape), {}, {1, 2});
      }
    }
  }
  expect_the_reference_everywhere(every_op(make_case(0, 16, Shape::kModel, {})), "no rows");
  SamplingParams greedy;
  greedy.temperature = 0.0f;
  greedy.top_k = 3;  // without effect
  expect_the_reference_everywhere(every_op(make_case(9, 100, Shape::kModel, greedy)), "greedy");
}

TEST(LogprobInvariance, EqualsTheReferenceWhereThreadsShareRowsOrPiecesOfRows) {
  for (const Shape shape : {Shape::kModel, Shape::kMasked, Shape::kFar}) {
    expect_the_reference_everywhere(every_op(make_case(3000, 16, shape, {})),
                                    label(3000, 16, shape));
    expect_the_reference_everywhere(every_op(make_case(40, 2500, shape, {})),
                                    label(40, 2500, shape));
    expect_the_reference_everywhere(every_op(make_case(17, 8193, shape, {})),
                                    label(17, 8193, shape), {}, {1, 3});
    expect_the_reference_everywhere(every_op(make_case(1, 40003, shape, {})),
                                    label(1, 40003, shape));
  }
  const Case large = make_case(1, 151936, Shape::kModel, {});
  expect_the_reference_everywhere(every_op(large), "a large vocabulary", {}, {1, 4});
}

TEST(LogprobInvariance, EqualsTheReferenceWithFiltersAndParamsPerRow) {
  Case c = make_case(60, 300, Shape::kModel, {});
  Rng rng(5);
  for (SamplingParams& params : c.params) {
    params.temperature = rng.below(6) == 0 ? 0.0f : 0.5f + static_cast<float>(rng.uniform());
    params.top_k = rng.below(3) == 0 ? static_cast<std::int32_t>(rng.below(40)) : 0;
    params.top_p = rng.below(3) == 0 ? static_cast<float>(rng.uniform()) : 1.0f;
    params.min_p = rng.below(3) == 0 ? static_cast<float>(0.1 * rng.uniform()) : 0.0f;
  }
  // Most targets are filtered out: those rows are errors on both sides.
  expect_the_reference_everywhere(every_op(c), "filters");
  Case one = make_case(60, 300, Shape::kFlat, {});
  one.params.resize(1);
  one.params[0].top_p = 0.9999f;
  expect_the_reference_everywhere(every_op(one), "one filter for all");
}

TEST(LogprobInvariance, EqualsTheReferenceForSpacedLogits) {
  Case c = make_case(5, 300, Shape::kModel, {});
  for (const std::int64_t apart : {1, 2}) {
    Tensor storage(DType::kF32, {5 * 700});
    TensorView logits{storage.view().data, DType::kF32, Layout{5, 300}};
    logits.layout.stride = {700, apart, 0, 0};
    for (std::int64_t t = 0; t < 5; ++t) {
      for (std::int64_t j = 0; j < 300; ++j) *logits.at<float>(t, j) = value(c.logits, 300 * t + j);
    }
    const OpCall run = [&](const KernelTable& kernels, Exec& exec) {
      std::vector<Tensor> out;
      out.push_back(Tensor(DType::kF32, {5}));
      kernels.logprob(exec, {out[0], {}, logits, c.targets, c.params.data(), 5});
      return out;
    };
    expect_the_reference_everywhere(run, "spaced logits");
  }
}

TEST(Logprob, ReportsTheRowsThatTheReferenceReports) {
  for (const std::int64_t vocab : {5, 40, 9000}) {
    for (const float bad : {kNan, kInf, -kInf, 0x1.1p30f, -0x1.1p30f}) {
      for (const std::int64_t at : {std::int64_t{0}, vocab / 2, vocab - 1}) {
        Case c = make_case(4, vocab, Shape::kModel, {});
        c.logits.data<float>()[2 * vocab + at] = bad;
        c.targets.data<std::int32_t>()[1] = static_cast<std::int32_t>(vocab / 3);
        expect_the_reference_everywhere(every_op(c), "a bad logit", {}, {2});
      }
    }
    Case c = make_case(4, vocab, Shape::kModel, {});
    for (std::int64_t j = 0; j < vocab; ++j) c.logits.data<float>()[3 * vocab + j] = -1e30f;
    expect_the_reference_everywhere(every_op(c), "nothing takes part", {}, {2});
    c.targets.data<std::int32_t>()[1] = static_cast<std::int32_t>(vocab);
    expect_the_reference_everywhere(every_op(c), "a target outside", {}, {2});
    c.logits.data<float>()[vocab] = -1e30f;
    c.targets.data<std::int32_t>()[1] = 0;
    expect_the_reference_everywhere(every_op(c), "a masked target", {}, {2});
    EXPECT_EQ(outcome(every_op(c), cpu_kernels()).fault_row, 1);
  }
}

// The vector kernels take the bin of z_max for the highest bin of a row.
TEST(Logprob, TheBinOfALogitNeverFallsAsTheLogitRises) {
  for (const float center : {-0x1p12f, 0x1p12f}) {
    float z = center - 0.25f;
    std::int32_t last = numerics::logit_term(z).n;
    for (; z < center + 0.25f; z = std::nextafter(z, kInf)) {
      const std::int32_t n = numerics::logit_term(z).n;
      ASSERT_LE(last, n) << z;
      last = n;
    }
  }
}

TEST(SampleInvariance, DrawsTheSameTokenForEveryBatchAndTieGoesToTheLowerId) {
  const Case c = make_case(33, 1000, Shape::kFlat, {});
  for (const Isa isa : isas()) {
    TestExec exec({}, 2);
    Tensor all(DType::kI32, {33});
    cpu_kernels(isa).sample(exec, {all, c.logits, c.params.data(), c.keys.data()});
    for (std::int64_t t = 0; t < 33; ++t) {
      Tensor one(DType::kI32, {1});
      cpu_kernels(isa).sample(exec, {one, rows(ConstTensorView(c.logits), t, t + 1),
                                     c.params.data() + t, c.keys.data() + t});
      EXPECT_EQ(*one.data<std::int32_t>(), all.data<std::int32_t>()[t]);
    }
    Tensor equal(DType::kF32, {1, 30000});
    for (const std::int64_t first : {0, 77, 8191, 20000}) {
      equal.fill_zero();
      for (const std::int64_t id : {first, first + 1, first + 9000}) {
        equal.data<float>()[id] = 2.5f;
      }
      SamplingParams greedy;
      greedy.temperature = 0.0f;
      Tensor id(DType::kI32, {1});
      cpu_kernels(isa).sample(exec, {id, equal, &greedy, c.keys.data()});
      EXPECT_EQ(*id.data<std::int32_t>(), first);
    }
  }
}

TEST(SampleTwin, AnotherPositionDrawsOtherTokens) {
  Case c = make_case(50, 1000, Shape::kFlat, {});
  const Outcome right = outcome(every_op(c), reference_kernels());
  for (SampleKey& key : c.keys) ++key.position;
  for (const Isa isa : isas()) {
    EXPECT_FALSE(same_bytes(outcome(every_op(c), cpu_kernels(isa)).outputs[5], right.outputs[5]));
  }
}

TEST(LogprobTwin, AnF32SumOfExponentialsGivesOtherBytesInAnotherOrder) {
  const Case c = make_case(50, 1000, Shape::kModel, {});
  const auto naive = [&](bool reversed) {
    Tensor out(DType::kF32, {50});
    for (std::int64_t t = 0; t < 50; ++t) {
      const float* z = c.logits.data<float>() + 1000 * t;
      float sum = 0.0f;
      for (std::int64_t j = 0; j < 1000; ++j)
        sum += numerics::exp(z[reversed ? 999 - j : j] - 30.0f);
      const std::int32_t target = c.targets.data<std::int32_t>()[t];
      if (target >= 0) out.data<float>()[t] = (z[target] - 30.0f) - numerics::log(sum);
    }
    return out;
  };
  EXPECT_FALSE(same_bytes(naive(false), naive(true)));
  for (const Isa isa : isas()) {
    const Outcome right = outcome(every_op(c), cpu_kernels(isa));
    EXPECT_FALSE(same_bytes(right.outputs[0], naive(false)));
    for (std::int64_t t = 0; t < 50; ++t) {
      EXPECT_NEAR(value(right.outputs[0], t), value(naive(false), t), 1e-4f);
    }
  }
}

// Bins of 8 octaves in place of 16: what lies 25 to 47 octaves below the likeliest token is lost.
TEST(LogprobTwin, NarrowerBinsDropTokensThatCount) {
  const std::int64_t vocab = 40000;
  Case c = make_case(3, vocab, Shape::kModel, {});
  std::vector<std::int32_t> first(3, 0);
  c.targets = i32_tensor(first);
  Tensor narrow(DType::kF32, {3});
  for (std::int64_t t = 0; t < 3; ++t) {
    float* z = c.logits.data<float>() + vocab * t;
    Rng rng(static_cast<std::uint64_t>(t) + 9);
    z[0] = 1.0f;
    double sum = 0.0;
    for (std::int64_t j = 1; j < vocab; ++j) z[j] = static_cast<float>(-19.0 + 0.5 * rng.normal());
    const auto bin = [](float x) { return numerics::logit_term(x).n >> 3; };
    for (std::int64_t j = 0; j < vocab; ++j) {
      if (bin(z[j]) >= bin(z[0]) - 3) sum += std::exp(static_cast<double>(z[j]) - z[0]);
    }
    narrow.data<float>()[t] = static_cast<float>(-std::log(sum));
  }
  for (const Isa isa : isas()) {
    const Outcome right = outcome(every_op(c), cpu_kernels(isa));
    for (std::int64_t t = 0; t < 3; ++t) {
      EXPECT_LT(value(right.outputs[0], t), value(narrow, t) - 1e-5f);
    }
  }
}

}  // namespace
}  // namespace rlk::test
