// Reference log-probabilities: values, filters, sampling, and gradients.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "reference_gradient.h"
#include "rlk/kernels/reference/table.h"
#include "rlk/numerics/philox.h"
#include "test_data.h"

namespace rlk::test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

struct Result {
  float logp;
  float entropy;
  std::int64_t fault;
};

Result logprob_of(const std::vector<float>& logits, std::int32_t target,
                  const SamplingParams& params = {}) {
  TestExec exec;
  const auto n = static_cast<std::int64_t>(logits.size());
  Tensor logp = f32_tensor({99.0f});
  Tensor entropy = f32_tensor({99.0f});
  reference::logprob(
      exec, {logp, entropy, view(logits.data(), {1, n}), i32_tensor({target}), &params, 1});
  return {value(logp, 0), value(entropy, 0), exec.fault.row()};
}

// The ids of `logits` that have a log-probability.
std::vector<std::int32_t> kept(const std::vector<float>& logits, const SamplingParams& params) {
  std::vector<std::int32_t> ids;
  for (std::int32_t j = 0; j < static_cast<std::int32_t>(logits.size()); ++j) {
    if (logprob_of(logits, j, params).fault < 0) ids.push_back(j);
  }
  return ids;
}

using Ids = std::vector<std::int32_t>;

TEST(Logprob, MatchesValuesComputedByHand) {
  EXPECT_EQ(logprob_of({5.0f}, 0).logp, 0.0f);
  EXPECT_EQ(logprob_of({5.0f}, 0).entropy, 0.0f);
  EXPECT_EQ(logprob_of({1.0f, 1.0f}, 1).logp, -0.6931472f);
  EXPECT_EQ(logprob_of({1.0f, 1.0f}, 1).entropy, 0.6931472f);
  EXPECT_EQ(logprob_of({-1000.0f, 1000.0f}, 0).logp, -2000.0f);
  EXPECT_EQ(logprob_of({0.0f, -0x1p31f}, 0).logp, 0.0f);  // a mask takes no part
}

TEST(Logprob, IsWithinOneUlpOfTheValueInDouble) {
  const std::int64_t vocab_size = 1000;
  const Tensor logits = random_tensor(DType::kF32, {20, vocab_size}, 81, Kind::kNormal, 4.0);
  TestExec exec;
  Tensor logp(DType::kF32, {20});
  Tensor entropy(DType::kF32, {20});
  std::vector<std::int32_t> targets;
  for (int t = 0; t < 20; ++t) targets.push_back(t * 37);
  const SamplingParams params;
  reference::logprob(exec, {logp, entropy, logits, i32_tensor(targets), &params, 1});
  for (std::int64_t t = 0; t < 20; ++t) {
    double sum = 0.0, weighted = 0.0;
    for (std::int64_t j = 0; j < vocab_size; ++j) {
      const double z = value(logits, t * vocab_size + j);
      sum += std::exp(z);
      weighted += std::exp(z) * z;
    }
    const double z = value(logits, t * vocab_size + t * 37);
    EXPECT_LE(numerics::ulp_distance(value(logp, t), static_cast<float>(z - std::log(sum))), 1);
    EXPECT_NEAR(value(entropy, t), std::log(sum) - weighted / sum, 1e-5);
  }
}

TEST(Logprob, IgnoredRowsAreNeverLookedAt) {
  const Result r = logprob_of({std::nanf(""), kInf}, kIgnoreIndex);
  EXPECT_EQ(r.logp, 0.0f);
  EXPECT_EQ(r.entropy, 0.0f);
  EXPECT_EQ(r.fault, -1);
}

TEST(Logprob, ReportsBadLogitsAndTargets) {
  EXPECT_EQ(logprob_of({0.0f, std::nanf("")}, 0).fault, 0);
  EXPECT_EQ(logprob_of({0.0f, kInf}, 0).fault, 0);
  EXPECT_EQ(logprob_of({0.0f, -kInf}, 0).fault, 0);
  EXPECT_EQ(logprob_of({0.0f, 0x1.8p30f}, 0).fault, 0);
  EXPECT_EQ(logprob_of({0.0f, 1.0f}, 2).fault, 0);
  EXPECT_EQ(logprob_of({0.0f, 1.0f}, -1).fault, 0);
  EXPECT_EQ(logprob_of({0.0f, -0x1p31f}, 1).fault, 0);
  EXPECT_EQ(logprob_of({-0x1p31f, -0x1p31f}, 1).fault, 0);
  EXPECT_EQ(logprob_of({0.0f, 0x1p29f}, 0, {.temperature = 0.25f}).fault, 0);
}

TEST(Logprob, OfTemperatureZeroIsThatOfOneWithoutFilters) {
  const std::vector<float> logits = {0.5f, -1.0f, 2.0f};
  const SamplingParams greedy{.temperature = 0.0f, .top_k = 1, .top_p = 0.1f, .min_p = 0.9f};
  EXPECT_EQ(logprob_of(logits, 1, greedy).logp, logprob_of(logits, 1).logp);
  EXPECT_NE(logprob_of(logits, 1, {.temperature = 0.5f}).logp, logprob_of(logits, 1).logp);
}

TEST(Filters, KeepByMinPTopKAndTopP) {
  // Probabilities 1/2, 1/4, 1/8, 1/16, 1/16 (ln 2 rounded in f32: nearly).
  const float ln2 = 0.69314718f;
  const std::vector<float> z = {-3 * ln2, 0.0f, -ln2, -4 * ln2, -4 * ln2};
  EXPECT_EQ(kept(z, {}), (Ids{0, 1, 2, 3, 4}));
  EXPECT_EQ(kept(z, {.min_p = 0.24f}), (Ids{1, 2}));
  EXPECT_EQ(kept(z, {.min_p = 1.0f}), (Ids{1}));
  EXPECT_EQ(kept(z, {.top_k = 2}), (Ids{1, 2}));
  EXPECT_EQ(kept(z, {.top_k = 4}), (Ids{0, 1, 2, 3}));  // a tie goes to the lower id
  EXPECT_EQ(kept(z, {.top_k = 100}), (Ids{0, 1, 2, 3, 4}));
  EXPECT_EQ(kept(z, {.top_p = 0.3f}), (Ids{1}));
  EXPECT_EQ(kept(z, {.top_p = 0.6f}), (Ids{1, 2}));
  EXPECT_EQ(kept(z, {.top_p = 1e-30f}), (Ids{1}));
  // top-p is of what top-k left: of 2/3 and 1/3, 0.6 keeps one.
  EXPECT_EQ(kept(z, {.top_k = 2, .top_p = 0.6f}), (Ids{1}));
  EXPECT_EQ(kept(z, {.top_k = 2, .top_p = 0.7f}), (Ids{1, 2}));
}

TEST(Filters, TopPStopsWhenTheSumBeforeReachesItsShare) {
  // Four equal tokens: the sums before are exactly 0, 1/4, 1/2, 3/4 of the row.
  const std::vector<float> z(4, 1.5f);
  EXPECT_EQ(kept(z, {.top_p = 0.5f}), (Ids{0, 1}));
  EXPECT_EQ(kept(z, {.top_p = std::nextafter(0.5f, 1.0f)}), (Ids{0, 1, 2}));
  EXPECT_EQ(kept(z, {.top_p = 0.25f}), (Ids{0}));
}

TEST(Filters, RenormaliseWhatTheyKeep) {
  const std::vector<float> z = {1.0f, 2.0f, 3.0f, 0.0f};
  const Result r = logprob_of(z, 1, {.top_k = 2});
  EXPECT_EQ(r.logp, logprob_of({2.0f, 3.0f}, 0).logp);
  EXPECT_EQ(r.entropy, logprob_of({2.0f, 3.0f}, 0).entropy);
}

TEST(LogprobInvariance, ColumnsInAnyOrderGiveTheSameBits) {
  for (const Kind kind : {Kind::kNormal, Kind::kCancelling, Kind::kSubnormal}) {
    const Tensor row = random_tensor(DType::kF32, {1, 777}, 82, kind, 3.0);
    std::vector<float> logits(row.data<float>(), row.data<float>() + 777);
    const Result before = logprob_of(logits, 0);
    Rng rng(83);
    for (std::size_t i = 776; i > 1; --i) {
      std::swap(logits[i], logits[1 + static_cast<std::size_t>(rng.below(static_cast<int>(i)))]);
    }
    const Result after = logprob_of(logits, 0);
    EXPECT_EQ(before.logp, after.logp);
    EXPECT_EQ(before.entropy, after.entropy);
  }
}

TEST(LogprobTwin, AFloatSumInAnotherOrderGivesOtherBits) {
  const Tensor row = random_tensor(DType::kF32, {1, 777}, 82, Kind::kNormal, 3.0);
  float rising = 0.0f, falling = 0.0f;
  for (std::int64_t j = 0; j < 777; ++j) {
    rising += std::exp(value(row, j));
    falling += std::exp(value(row, 776 - j));
  }
  EXPECT_NE(rising, falling);
}

double loss_in_double(const Values& logits, std::size_t vocab_size, const Ids& targets,
                      const Tensor& g, const Tensor& g_entropy, double temperature) {
  double total = 0.0;
  for (std::size_t t = 0; t < targets.size(); ++t) {
    double sum = 0.0, weighted = 0.0;
    for (std::size_t j = 0; j < vocab_size; ++j) {
      const double z = logits[t * vocab_size + j] / temperature;
      sum += std::exp(z);
      weighted += std::exp(z) * z;
    }
    const double z = logits[t * vocab_size + static_cast<std::size_t>(targets[t])] / temperature;
    total += value(g, static_cast<int>(t)) * (z - std::log(sum));
    total += value(g_entropy, static_cast<int>(t)) * (std::log(sum) - weighted / sum);
  }
  return total;
}

TEST(LogprobBackward, GradientAgreesWithFiniteDifferences) {
  const std::int64_t vocab_size = 23;
  const Tensor logits = random_tensor(DType::kF32, {4, vocab_size}, 84, Kind::kNormal, 2.0);
  const Ids targets = {3, 0, 22, 7};
  const SamplingParams params{.temperature = 0.7f};
  const Tensor g = f32_tensor({0.5f, -1.25f, 0.0f, 0.3f});
  for (const bool with_entropy : {false, true}) {
    const Tensor g_entropy = f32_tensor(with_entropy ? std::vector<float>{0.5f, 0.0f, -1.0f, 2.0f}
                                                     : std::vector<float>(4, 0.0f));
    Tensor dz(DType::kBF16, {4, vocab_size});
    TestExec exec;
    reference::logprob_backward(exec,
                                {dz, logits, i32_tensor(targets), g,
                                 with_entropy ? g_entropy.view() : ConstTensorView{}, &params, 1});
    expect_close(dz, numeric_gradient(
                         [&](const Values& x) {
                           return loss_in_double(x, 23, targets, g, g_entropy, params.temperature);
                         },
                         values(logits)));
  }
}

TEST(LogprobBackward, LeavesPlusZeroWhereNothingTakesPart) {
  // Two padded columns, a mask, a filtered token; an ignored row and one without a gradient.
  const std::vector<float> logits = {1.0f, 2.0f, -0x1p31f, -9.0f, std::nanf(""), 0.0f,
                                     0.0f, 0.0f, kInf,     0.0f,  0.0f,          0.0f};
  Tensor dz(DType::kBF16, {3, 6});
  std::fill_n(dz.data<bf16>(), dz.size(), bf16{0xffff});
  const SamplingParams params{.top_k = 2};
  TestExec exec;
  reference::logprob_backward(exec, {dz,
                                     view(logits.data(), {3, 4}),
                                     i32_tensor({1, kIgnoreIndex, 77}),
                                     f32_tensor({-1.0f, 1.0f, -0.0f}),
                                     {},
                                     &params,
                                     1});
  EXPECT_EQ(exec.fault.row(), -1);
  EXPECT_NEAR(value(dz, 0), 0.2689f, 0.002);
  EXPECT_NEAR(value(dz, 1), -0.2689f, 0.002);
  for (std::int64_t i = 2; i < 18; ++i) EXPECT_EQ(dz.data<bf16>()[i].bits, 0) << i;
}

Ids draw(const Tensor& logits, const SamplingParams& params, std::uint64_t first_request) {
  const std::int64_t n = logits.shape(0);
  TestExec exec;
  Tensor ids(DType::kI32, {n});
  const std::vector<SamplingParams> all(static_cast<std::size_t>(n), params);
  std::vector<SampleKey> keys;
  for (std::int64_t t = 0; t < n; ++t) {
    keys.push_back({7, first_request + static_cast<std::uint64_t>(t), 3});
  }
  reference::sample(exec, {ids, logits, all.data(), keys.data()});
  EXPECT_EQ(exec.fault.row(), -1);
  return {ids.data<std::int32_t>(), ids.data<std::int32_t>() + n};
}

TEST(Sample, GreedyTakesTheLowestIdOfTheMaximum) {
  const Tensor logits = f32_tensor({1.0f, 3.0f, 3.0f, -2.0f});
  Tensor row(DType::kF32, {1, 4});
  std::memcpy(row.data<float>(), logits.data<float>(), 16);
  EXPECT_EQ(draw(row, {.temperature = 0.0f}, 0), Ids{1});
}

TEST(Sample, FollowsTheDistribution) {
  const std::int64_t n = 20000;
  Tensor logits(DType::kF32, {n, 4});
  for (std::int64_t t = 0; t < n; ++t) {
    const float z[4] = {0.0f, 1.3862944f, 0.6931472f, -20.0f};  // weights 1, 4, 2, 0
    std::memcpy(logits.view().at<float>(t), z, sizeof z);
  }
  std::map<std::int32_t, int> counts;
  for (const std::int32_t id : draw(logits, {}, 0)) ++counts[id];
  EXPECT_NEAR(counts[0] / 20000.0, 1.0 / 7.0, 0.01);
  EXPECT_NEAR(counts[1] / 20000.0, 4.0 / 7.0, 0.01);
  EXPECT_NEAR(counts[2] / 20000.0, 2.0 / 7.0, 0.01);
  for (const std::int32_t id : draw(logits, {.top_k = 2}, 0)) EXPECT_TRUE(id == 1 || id == 2);
}

TEST(SampleInvariance, ADrawDependsOnItsKeyAlone) {
  const Tensor logits = random_tensor(DType::kF32, {8, 50}, 85);
  const Ids all = draw(logits, {.temperature = 0.8f}, 100);
  for (std::int64_t t = 0; t < 8; ++t) {
    Tensor one(DType::kF32, {1, 50});
    std::memcpy(one.data<float>(), logits.view().at<float>(t), 200);
    EXPECT_EQ(draw(one, {.temperature = 0.8f}, 100 + static_cast<std::uint64_t>(t)),
              Ids{all[static_cast<std::size_t>(t)]});
  }
}

TEST(SampleTwin, AnotherRequestGivesOtherDraws) {
  const Tensor logits = random_tensor(DType::kF32, {50, 50}, 85);
  EXPECT_NE(draw(logits, {}, 100), draw(logits, {}, 101));
}

TEST(Sample, ReportsRowsThatAreErrors) {
  TestExec exec;
  Tensor ids(DType::kI32, {2});
  const std::vector<float> logits = {0.0f, 1.0f, std::nanf(""), 0.0f};
  const SamplingParams params[2];
  const SampleKey keys[2] = {};
  reference::sample(exec, {ids, view(logits.data(), {2, 2}), params, keys});
  EXPECT_EQ(exec.fault.row(), 1);
}

}  // namespace
}  // namespace rlk::test
