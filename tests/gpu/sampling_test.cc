// Draws, filters and log-probabilities have the reference's bytes however rows are cut into parts.
#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "rlk/kernels/gpu/gumbel_bound.h"
#include "rlk/kernels/gpu/parts.h"
#include "rlk/numerics/philox.h"
#include "tests/gpu/gpu_test.h"

namespace rlk {
namespace {

using SamplingInvariance = test::OnGpu;
using SamplingTwin = test::OnGpu;
using test::TestExec;

enum class Kind { kNormal, kTies, kEqual, kMasked, kSpread, kFar, kTiny };
constexpr Kind kAllKinds[] = {Kind::kNormal, Kind::kTies, Kind::kEqual, Kind::kMasked,
                              Kind::kSpread, Kind::kFar,  Kind::kTiny};

float logit(std::mt19937& rng, Kind kind) {
  const float x = std::normal_distribution<float>()(rng);
  const auto below = [&](unsigned n) { return rng() % n; };
  switch (kind) {
    case Kind::kNormal: return 3.0f * x;
    case Kind::kTies: return 0.5f * static_cast<float>(below(9)) - (below(2) ? 0.0f : 2.0f);
    case Kind::kEqual: return 1.25f;
    case Kind::kMasked: return below(4) ? -1e30f : 2.0f * x;
    case Kind::kSpread: return below(20) ? 300.0f * x : 900.0f + x;  // most terms are dropped
    case Kind::kFar: return (below(3) ? 4096.0f : -4096.0f) + 0.01f * x;
    case Kind::kTiny: return 1e-3f * x;
  }
  return 0.0f;
}

std::vector<SamplingParams> all_params(std::int64_t vocab_size) {
  const auto v = static_cast<std::int32_t>(vocab_size);
  return {{},
          {0, 3, 0.5f, 0.5f},
          {0.7f, 0, 1, 0},
          {1, 50, 0.95f, 0},
          {1, 0, 0.9f, 0.01f},
          {1, 1, 1, 0},
          {1, v, 1, 0},
          {1, v / 2, 1e-6f, 0},
          {0.8f, 0, 0.999999f, 0},
          {1, 0, 1, 0.05f},
          {1.5f, v + 1, 0.3f, 1e-6f}};
}

// A batch with one kind of row, and its parameters in turn.
struct Batch {
  std::int64_t num_rows, vocab_size;
  Tensor logits, targets;
  std::vector<SamplingParams> params;
  std::vector<SampleKey> keys;

  Batch(std::int64_t rows, std::int64_t vocab, Kind kind)
      : num_rows(rows),
        vocab_size(vocab),
        logits(DType::kF32, {rows, vocab}, device::managed_memory()),
        targets(DType::kI32, {rows}, device::managed_memory()) {
    std::mt19937 rng(static_cast<unsigned>(rows * 1000 + vocab) + static_cast<unsigned>(kind));
    const std::vector<SamplingParams> some = all_params(vocab);
    for (std::int64_t t = 0; t < rows; ++t) {
      float* const row = logits.data<float>() + t * vocab;
      for (std::int64_t j = 0; j < vocab; ++j) row[j] = logit(rng, kind);
      row[rng() % static_cast<unsigned>(vocab)] = kind == Kind::kSpread ? 1000.0f : 1.25f;
      params.push_back(some[static_cast<std::size_t>(t) % some.size()]);
      keys.push_back({rng(), rng() * 4294967296ull, static_cast<std::uint32_t>(t)});
    }
  }
  std::string text(int parts) const {
    return std::to_string(num_rows) + " rows of " + std::to_string(vocab_size) + " in " +
           std::to_string(parts) + " parts";
  }
};

struct Result {
  std::vector<std::int32_t> ids;
  std::vector<float> logp, entropy;
  std::int64_t fault = -1;
  bool operator==(const Result&) const = default;
};

// parts: 0: the reference.
Result run(const Batch& b, int parts) {
  Tensor ids(DType::kI32, {b.num_rows}, device::managed_memory());
  Tensor logp(DType::kF32, {b.num_rows}, device::managed_memory());
  Tensor entropy(DType::kF32, {b.num_rows}, device::managed_memory());
  for (Tensor* t : {&ids, &logp, &entropy}) t->fill_zero();
  const SampleArgs draw{ids, b.logits, b.params.data(), b.keys.data()};
  const LogprobArgs score{logp, entropy, b.logits, ids, b.params.data(), b.num_rows};
  TestExec exec;
  Result out;
  if (parts == 0) {
    reference_kernels().sample(exec, draw);
    out.fault = exec.fault.row();
    reference_kernels().logprob(exec, score);
  } else {
    device::Queue queue;
    exec.exec.gpu = &queue;
    queue.clear_fault();
    gpu::sample_in_parts(exec, draw, gpu::parts_of(parts, b.vocab_size));
    out.fault = queue.read_fault();
    gpu::logprob_in_parts(exec, score, 0, gpu::parts_of(parts, b.vocab_size));
    queue.read_fault();
  }
  out.ids.assign(ids.data<std::int32_t>(), ids.data<std::int32_t>() + b.num_rows);
  out.logp.assign(logp.data<float>(), logp.data<float>() + b.num_rows);
  out.entropy.assign(entropy.data<float>(), entropy.data<float>() + b.num_rows);
  return out;
}

TEST_F(SamplingInvariance, PartsOfARowGiveTheReferencesBytes) {
  for (const Kind kind : kAllKinds) {
    const Batch b(11, 2501, kind);
    const Result right = run(b, 0);
    EXPECT_EQ(right.fault, -1);
    EXPECT_EQ(run(b, 3), right) << b.text(3);
    if (kind == Kind::kTies) {
      EXPECT_EQ(run(b, 1), right) << b.text(1);
    }
  }
}

TEST_F(SamplingInvariance, RowsOfAnyNumberAndSizeGiveTheReferencesBytes) {
  const auto expect = [](Batch b, int parts, std::size_t filters) {
    for (std::size_t t = filters; t < b.params.size(); ++t) b.params[t] = {0.9f, 0, 1, 0};
    EXPECT_EQ(run(b, parts), run(b, 0)) << b.text(parts);
  };
  expect(Batch(1, 1, Kind::kNormal), 2, 0);
  expect(Batch(1, 9000, Kind::kNormal), 5, 0);
  expect(Batch(3, 5, Kind::kTies), 2, 0);
  expect(Batch(4, 4097, Kind::kTies), 7, 4);
  expect(Batch(64, 130, Kind::kNormal), 2, 5);
  expect(Batch(200, 17, Kind::kTies), 3, 5);
}

TEST_F(SamplingInvariance, AnErrorInAnyPartIsReported) {
  const std::pair<float, std::int64_t> cases[] = {
      {std::nanf(""), 999}, {INFINITY, 0}, {-INFINITY, 2000}, {0x1.1p30f, 1400}};
  for (const auto& [bad, at] : cases) {
    for (const std::int64_t row : {0, 1}) {  // without filters and with
      Batch b(2, 2001, Kind::kNormal);
      b.params[1] = {1, 50, 1, 0};
      b.logits.data<float>()[row * 2001 + at] = bad;
      EXPECT_EQ(run(b, 0).fault, row);
      EXPECT_EQ(run(b, 3), run(b, 0)) << "row " << row << " token " << at;
    }
  }
  Batch nothing(2, 300, Kind::kNormal);
  nothing.params[1] = {1, 50, 1, 0};
  std::fill_n(nothing.logits.data<float>(), 600, -1e30f);
  EXPECT_EQ(run(nothing, 0).fault, 0);
  EXPECT_EQ(run(nothing, 2), run(nothing, 0));
}

TEST_F(SamplingInvariance, TargetsThatFiltersRemovedAreErrorsInAnyParts) {
  Batch b(11, 1500, Kind::kNormal);
  for (std::int64_t t = 3; t < 11; ++t) {
    for (const std::int32_t target : {0, 1499}) {
      Tensor targets(DType::kI32, {1}, device::managed_memory());
      *targets.data<std::int32_t>() = target;
      const auto score = [&](int parts) {
        Tensor logp(DType::kF32, {1}, device::managed_memory());
        logp.fill_zero();
        LogprobArgs args{logp, {}, rows(b.logits.view(), t, t + 1), targets};
        args.params = &b.params[static_cast<std::size_t>(t)];
        TestExec exec;
        if (parts == 0) {
          reference_kernels().logprob(exec, args);
          return std::pair(*logp.data<float>(), exec.fault.row());
        }
        device::Queue queue;
        exec.exec.gpu = &queue;
        queue.clear_fault();
        gpu::logprob_in_parts(exec, args, 0, gpu::parts_of(parts, 1500));
        const std::int64_t fault = queue.read_fault();
        return std::pair(*logp.data<float>(), fault);
      };
      EXPECT_EQ(score(3), score(0)) << t << ", " << target;
    }
  }
}

using Tokens = std::vector<std::int32_t>;

float score(const Batch& b, std::int64_t t, std::int64_t j) {
  const SampleKey& key = b.keys[static_cast<std::size_t>(t)];
  return b.logits.data<float>()[t * b.vocab_size + j] +
         numerics::gumbel(key.seed, key.request, key.position, static_cast<std::uint32_t>(j));
}

TEST_F(SamplingTwin, TiesToTheHigherIdGiveOtherTokens) {
  Batch b(5, 2501, Kind::kTies);
  for (SamplingParams& p : b.params) p = {0, 0, 1, 0};
  Tokens wrong;
  for (std::int64_t t = 0; t < 5; ++t) {
    const float* const row = b.logits.data<float>() + t * 2501;
    std::int32_t best = 0;
    for (std::int32_t j = 1; j < 2501; ++j) best = row[j] >= row[best] ? j : best;
    wrong.push_back(best);
  }
  const Result right = run(b, 3);
  EXPECT_EQ(right, run(b, 0));
  EXPECT_NE(right.ids, wrong);
}

// As if each part were a row: of 50 tokens in all 50 of each are kept.
TEST_F(SamplingTwin, FiltersOfEachPartAloneGiveOtherTokens) {
  Batch b(12, 2501, Kind::kTies);
  for (SamplingParams& p : b.params) p = {1, 50, 1, 0};
  Tokens wrong;
  for (std::int64_t t = 0; t < 12; ++t) {
    const float* const row = b.logits.data<float>() + t * 2501;
    std::int32_t best = -1;
    for (std::int32_t begin = 0; begin < 2501; begin += 836) {
      Tokens ids;
      for (std::int32_t j = begin; j < std::min(begin + 836, 2501); ++j) ids.push_back(j);
      std::stable_sort(ids.begin(), ids.end(), [&](int i, int j) { return row[i] > row[j]; });
      ids.resize(50);
      for (const std::int32_t j : ids) {
        if (best < 0 || score(b, t, j) > score(b, t, best)) best = j;
      }
    }
    wrong.push_back(best);
  }
  const Result right = run(b, 3);
  EXPECT_EQ(right, run(b, 0));
  EXPECT_NE(right.ids, wrong);
}

TEST_F(SamplingTwin, F32SumsOfPartsDependOnTheParts) {
  Batch b(15, 2501, Kind::kNormal);
  for (SamplingParams& p : b.params) p = {};
  const auto wrong = [&](std::int64_t size) {
    std::vector<float> logp;
    for (std::int64_t t = 0; t < 15; ++t) {
      const float* const row = b.logits.data<float>() + t * 2501;
      float sum = 0.0f;
      for (std::int64_t begin = 0; begin < 2501; begin += size) {
        float part = 0.0f;
        for (std::int64_t j = begin; j < std::min<std::int64_t>(begin + size, 2501); ++j) {
          part += numerics::exp(row[j] - 10.0f);
        }
        sum += part;
      }
      logp.push_back(row[0] - 10.0f - numerics::log(sum));
    }
    return logp;
  };
  EXPECT_NE(wrong(2501), wrong(836));
  EXPECT_EQ(run(b, 1), run(b, 3));
}

// A token is left out of a draw only by this bound, so it is tried for each of the 2^23 numbers.
TEST(GumbelBound, NoNoiseIsAboveItsBound) {
  float largest = 0.0f, slack = 0.0f;
  int above = 0;
  for (std::uint32_t k = 0; k < 1u << 23; ++k) {
    const std::uint32_t word = k << 9 | (k & 511);
    const float noise = numerics::gumbel_of_word(word), bound = gpu::gumbel_bound(word);
    above += noise <= bound && noise <= gpu::kMaxGumbel ? 0 : 1;
    largest = std::max(largest, noise);
    // Below the median it matters little.
    if (k >= 1u << 22 && k < (1u << 23) - 64) slack = std::max(slack, bound - noise);
  }
  EXPECT_EQ(above, 0);
  EXPECT_GT(largest, gpu::kMaxGumbel - 0.01f);
  EXPECT_LT(slack, 0.4f);
}

}  // namespace
}  // namespace rlk
