// Failures of log-probabilities and sampling, fm01 to fm13.
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <set>
#include <sstream>

#include "rlk/compare/record_file.h"
#include "rlk/numerics/log_sum_exp.h"
#include "rlk/ops/embedding.h"
#include "rlk/ops/grpo_loss.h"
#include "rlk/ops/linear_logp.h"
#include "tests/failure_modes/each_backend.h"
#include "tests/rollout/rollout_data.h"
#include "tests/trainer/completion_sample.h"
#include "tests/trainer/trainer_data.h"

namespace rlk::test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return std::string(to_string(error.code())) + ": " + error.what();
  }
  return "no error";
}

// An id outside the vocabulary: a probability of 1 here, an exception there, minus LSE elsewhere.
TEST(FailureModes, fm01_AnIdOutsideTheVocabularyIsOneErrorOnEveryBackendAndInEveryMode) {
  const Tensor logits = random_tensor(DType::kF32, {3, 21}, 1);
  const Tensor hidden = random_tensor(DType::kBF16, {3, 32}, 2);
  const Tensor head = random_tensor(DType::kBF16, {128, 32}, 3);
  const SamplingParams params;
  for (std::int32_t id : {-1, -99, -101, 21, 22, 1 << 30, std::numeric_limits<int>::min()}) {
    std::set<std::string> messages;
    const auto collect = [&](Context& ctx) {
      Tensor logp = f32_tensor({7, 7, 7}), g = f32_tensor({1, 1, 1});
      Tensor dlogits(DType::kBF16, {3, 32});
      const Tensor targets = i32_tensor({0, id, 20});
      messages.insert(message_of([&] { logprob(ctx, {logp, {}, logits, targets, &params, 1}); }));
      EXPECT_EQ(value(logp, 0), 7.0f);  // nothing is written
      EXPECT_NE(message_of([&] {
                  logprob_backward(ctx, {dlogits, logits, targets, g, {}, &params, 1});
                }).find("outside the vocabulary"),
                std::string::npos);
      LinearLogpArgs args;
      args.logp = logp;
      args.hidden = hidden;
      args.head = head;
      args.vocab_size = 21;
      args.targets = targets;
      args.params = &params;
      EXPECT_NE(message_of([&] { linear_logp(ctx, args); }).find("outside the vocabulary"),
                std::string::npos);
      Tensor y(DType::kBF16, {3, 32});
      EXPECT_NE(message_of([&] {
                  embedding(ctx, {y, rows(head.view(), 0, 21), targets});
                }).find("[0, 21)"),
                std::string::npos);
    };
    each_backend(collect);
    for (Mode mode : {Mode::kOff, Mode::kAuto, Mode::kAudit}) {
      Context ctx({}, all_ops(mode), 1);
      collect(ctx);
    }
    EXPECT_EQ(messages.size(), 1u) << *messages.begin();
    EXPECT_EQ(messages.begin()->find("no error"), std::string::npos);
  }
}

// A masked row with something impossible in it: a crash, a NaN, a gradient.
TEST(FailureModes, fm02_AMaskedRowIsNeverLookedAt) {
  each_backend([](Context& ctx) {
    const std::vector<float> good{0.5f, -1, 2, 0};
    const Tensor logits = f32_rows({good,
                                    {kNan, 0, 0, 0},
                                    {kInf, -kInf, 0, 0},
                                    {-kInf, -kInf, -kInf, -kInf},
                                    {0x1p100f, 0, 0, 0},
                                    good});
    const std::vector<std::int32_t> targets{2, -100, -100, -100, -100, 3};
    const Scored s = score(ctx, logits, targets);
    const Scored alone = score(ctx, f32_rows({good, good}), {2, 3});
    EXPECT_EQ(value(s.logp, 0), value(alone.logp, 0));
    EXPECT_EQ(value(s.logp, 5), value(alone.logp, 1));
    Tensor g = f32_tensor({1, 1, 1, 1, 1, -2}), d(DType::kBF16, {6, 16});
    std::fill_n(d.data<bf16>(), d.size(), numerics::to_bf16(7));
    const SamplingParams params;
    const Tensor ids = i32_tensor(targets);
    logprob_backward(ctx, {d, logits, ids, g, {}, &params, 1});
    for (std::int64_t row = 1; row < 5; ++row) {
      EXPECT_EQ(std::bit_cast<std::uint32_t>(value(s.logp, row)), 0u);
      EXPECT_EQ(std::bit_cast<std::uint32_t>(value(s.entropy, row)), 0u);
      for (std::int64_t j = 0; j < 16; ++j) EXPECT_EQ(d.data<bf16>()[row * 16 + j].bits, 0);
    }
    EXPECT_NE(value(d, 2), 0.0f);
    EXPECT_NE(value(d, 5 * 16 + 3), 0.0f);
    // The same rows unmasked are refused.
    for (std::int64_t row = 1; row < 5; ++row) {
      expect_error(ErrorCode::kNonFinite, {"row 0"},
                   [&] { score(ctx, rows(logits.view(), row, row + 1), {1}); });
    }
  });
}

// A row maximum that starts from -1e20 or -1e9, or a mask that is a large negative number.
TEST(FailureModes, fm03_VeryNegativeRowsAreExactAndMasksTakeNoPart) {
  each_backend([](Context& ctx) {
    for (float base : {-0x1p30f + 128.0f, -0x1p29f, -0x1p20f, 0x1p29f}) {
      const Scored s = score(ctx, f32_rows({{base, base - 128, base - 1024}}), {1});
      EXPECT_EQ(value(s.logp, 0), -128.0f) << base;
      EXPECT_GE(value(s.entropy, 0), 0.0f);
    }
    const Scored equal = score(ctx, f32_rows({std::vector<float>(8, -0x1p30f)}), {3});
    EXPECT_NEAR(value(equal.logp, 0), -std::log(8.0), 1e-6);
    EXPECT_NEAR(value(equal.entropy, 0), std::log(8.0), 1e-6);

    // Below -2^30 a logit is a mask: the column is not there.
    const float below = std::nextafter(-0x1p30f, -kInf);
    const Scored masked = score(ctx, f32_rows({{-3, -2.5f}}), {0});
    for (float mask : {below, -1e20f, -3e38f}) {
      EXPECT_TRUE(
          same_bits(score(ctx, f32_rows({{-3, -2.5f, mask, mask}}), {0}).logp, masked.logp));
      expect_error(ErrorCode::kNonFinite, {"nothing takes part"}, [&] {
        score(ctx, f32_rows({{mask, mask, mask}}), {0});
      });
      expect_error(ErrorCode::kNonFinite, {"a target that takes no part"}, [&] {
        score(ctx, f32_rows({{0, mask, 1}}), {1});
      });
    }
    EXPECT_FALSE(same_bits(score(ctx, f32_rows({{-3, -2.5f, -9}}), {0}).logp, masked.logp));
    // An infinite logit is no mask but a number that went wrong.
    expect_error(ErrorCode::kNonFinite, {"row 0"}, [&] {
      score(ctx, f32_rows({{0, -kInf, 1}}), {0});
    });
  });
}

// One side reads the padded vocabulary, the other the real one.
TEST(FailureModes, fm04_PaddedColumnsAreNotColumns) {
  each_backend([](Context& ctx) {
    const std::int64_t tokens = 5, padded = 64, real = 53, width = 48;
    const Tensor hidden = random_tensor(DType::kBF16, {tokens, width}, 1);
    Tensor head = random_tensor(DType::kBF16, {padded, width}, 2);
    const Tensor targets = i32_tensor({0, 52, 7, 31, 52});
    const SamplingParams params;
    const auto logps = [&](std::int64_t vocab_size) {
      Tensor logp(DType::kF32, {tokens});
      LinearLogpArgs args;
      args.logp = logp;
      args.hidden = hidden;
      args.head = head;
      args.vocab_size = vocab_size;
      args.targets = targets;
      args.params = &params;
      linear_logp(ctx, args);
      return logp;
    };
    const Tensor expected = logps(real);
    EXPECT_FALSE(same_bits(logps(padded), expected));  // padding that is read shows
    for (std::int64_t i = real * width; i < padded * width; ++i) {
      head.data<bf16>()[i] = numerics::to_bf16(99.0f);
    }
    EXPECT_TRUE(same_bits(logps(real), expected));

    // Logits that lie in wider rows, as the first `real` of `padded` columns.
    Tensor wide = random_tensor(DType::kF32, {tokens, padded}, 3, Kind::kNormal, 30), dense;
    dense = Tensor(DType::kF32, {tokens, real});
    for (std::int64_t i = 0; i < dense.size(); ++i) {
      dense.data<float>()[i] = wide.data<float>()[i / real * padded + i % real];
    }
    const std::vector<std::int32_t> ids{0, 52, 7, 31, 52};
    EXPECT_TRUE(same_bits(score(ctx, columns(wide.view(), 0, real), ids).logp,
                          score(ctx, dense, ids).logp));
    // The sampler never draws padding, however likely it looks.
    for (std::int64_t t = 0; t < tokens; ++t) wide.data<float>()[t * padded + real] = 1e6f;
    Tensor drawn(DType::kI32, {tokens});
    const std::vector<SamplingParams> greedy(5, {.temperature = 0});
    const std::vector<SampleKey> keys(5);
    sample(ctx, {drawn, columns(wide.view(), 0, real), greedy.data(), keys.data()});
    for (std::int64_t t = 0; t < tokens; ++t) EXPECT_LT(drawn.data<std::int32_t>()[t], real);
  });
  // And two records of other vocabularies are not compared.
  Record a, b;
  a.vocab_size = 151936;
  b.vocab_size = 152064;
  EXPECT_EQ(compare(a, b).status, CompareStatus::kNotComparable);
  EXPECT_EQ(compare(a, b).field, "vocab_size");
}

// A vocabulary that the shard count does not divide; a shard that is padding alone.
TEST(FailureModes, fm05_AnyShardsOfTheVocabularyGiveTheSameBits) {
  const auto shards = [](const std::vector<float>& row, std::int64_t count) {
    const auto size = static_cast<std::int64_t>(row.size());
    const std::int64_t width = ((size + count - 1) / count + 15) / 16 * 16;
    std::vector<numerics::EntropySumExp> parts(static_cast<std::size_t>(count));
    for (std::int64_t j = 0; j < count * width; ++j) {
      if (j < size) parts[static_cast<std::size_t>(j / width)].add(row[j]);
    }
    return parts;
  };
  bool f32_differs = false;
  for (std::int64_t size : {5, 33, 257, 50257}) {
    const Tensor logits = random_tensor(DType::kF32, {1, size}, 9 + size, Kind::kNormal, 8);
    const std::vector<float> row(logits.data<float>(), logits.data<float>() + size);
    const numerics::EntropySumExp whole = shards(row, 1)[0];
    std::set<float> f32_sums;
    for (std::int64_t count : {1, 2, 4, 8}) {
      auto parts = shards(row, count);
      for (int order = 0; order < 2; ++order) {
        numerics::EntropySumExp merged;
        float sum = 0.0f;
        for (const auto& part : parts) {
          merged.merge(part);
          if (part.sum.any) {
            sum += static_cast<float>(std::exp(numerics::LogSumExpEnd(part.sum).lse - 30.0));
          }
        }
        EXPECT_EQ(merged, whole) << size << " / " << count;
        EXPECT_EQ(numerics::LogSumExpEnd(merged.sum).lse, numerics::LogSumExpEnd(whole.sum).lse);
        f32_sums.insert(sum);
        std::reverse(parts.begin(), parts.end());
      }
    }
    f32_differs = f32_differs || f32_sums.size() > 1;
    // And it is the log-probability of the operator.
    const numerics::LogSumExpEnd end(whole.sum);
    each_backend(
        [&](Context& ctx) { EXPECT_EQ(value(score(ctx, logits, {3}).logp, 0), end.logp(row[3])); });
  }
  EXPECT_TRUE(f32_differs);  // a sum of shard sums in f32 would show
}

RecordSample record_of(const Completion& c, const SamplingParams& p, std::int64_t index) {
  RecordSample s;
  s.sample = index;
  s.sampling = {p.temperature, p.top_k, p.top_p, p.min_p};
  s.prefix = c.prompt_token_ids;
  s.targets = c.token_ids;
  for (std::size_t i = 0; i < c.token_ids.size(); ++i) {
    s.positions.push_back(static_cast<std::int64_t>(c.prompt_token_ids.size() + i));
  }
  s.mask.assign(c.token_ids.size(), 1);
  s.weight_versions = c.weight_versions;
  s.logprobs = c.logprobs;
  return s;
}

Record record(const std::string& name) {
  Record r;
  r.name = name;
  r.provenance = "run/" + name;
  r.model_digest = "m";
  r.forward_digest = "f";
  r.vocab_size = 53;
  return r;
}

const SamplingParams kSharp{.temperature = 0.7f, .top_k = 9, .top_p = 0.9f};

const Completion& sharp_completion() {
  static const Completion kCompletion = generate({}, {request(1, 20, 24, kSharp)})[0];
  return kCompletion;
}

// One side divides by the temperature or renormalises over top-p, the other does not.
TEST(FailureModes, fm06_BothSidesScoreTheDistributionThatWasSampled) {
  const Completion& c = sharp_completion();
  TestTrainer t{{}};
  const auto scored = [&](const SamplingParams& p) {
    const TrainSample s = sample_of(c, p);
    return t.trainer.score({&s, 1})[0];
  };
  EXPECT_TRUE(same_bytes(scored(kSharp), c.logprobs));
  EXPECT_TRUE(same_bytes(scored({}), c.logprobs_raw));
  EXPECT_FALSE(same_bytes(c.logprobs, c.logprobs_raw));
  EXPECT_FALSE(same_bytes(scored({.temperature = 0.7f}), c.logprobs));

  Record rollout = record("rollout"), trainer = record("trainer");
  rollout.samples = {record_of(c, kSharp, 0)};
  for (const SamplingParams& other :
       {SamplingParams{}, {.temperature = 0.7f, .top_k = 9}, {.temperature = 0.7f}}) {
    trainer.samples = {record_of(c, other, 0)};
    trainer.samples[0].logprobs = scored(other);
    EXPECT_EQ(compare(rollout, trainer).status, CompareStatus::kNotComparable);
    EXPECT_EQ(compare(rollout, trainer).field, "sampling");
  }
  trainer.samples = {record_of(c, kSharp, 0)};
  trainer.samples[0].logprobs = scored(kSharp);
  EXPECT_EQ(compare(rollout, trainer).status, CompareStatus::kEqual);
}

// Ties at the edge of top-k keep more than k; among tied logits the batch decides.
TEST(FailureModes, fm07_TiesAtTheTopKEdgeKeepTheLowestIds) {
  each_backend([](Context& ctx) {
    const std::vector<float> tied{1, 2, 2, 2, 0, 2};
    const SamplingParams top2{.temperature = 1, .top_k = 2};
    const float half = value(score(ctx, f32_rows({{2, 2}}), {0}).logp, 0);
    for (std::int32_t kept : {1, 2}) {
      EXPECT_EQ(value(score(ctx, f32_rows({tied}), {kept}, top2).logp, 0), half);
    }
    for (std::int32_t excluded : {0, 3, 4, 5}) {
      expect_error(ErrorCode::kNonFinite, {"takes no part"},
                   [&] { score(ctx, f32_rows({tied}), {excluded}, top2); });
    }
    // top-p stops inside the ties, too: each of four is a quarter.
    const SamplingParams top_p{.temperature = 1, .top_p = 0.5f};
    EXPECT_EQ(value(score(ctx, f32_rows({{2, 2, 2, 2}}), {1}, top_p).logp, 0), half);
    expect_error(ErrorCode::kNonFinite, {"takes no part"}, [&] {
      score(ctx, f32_rows({{2, 2, 2, 2}}), {2}, top_p);
    });

    const std::size_t n = 64;
    const std::vector<SamplingParams> params(n, top2), greedy(n, {.temperature = 0});
    std::vector<SampleKey> keys(n);
    for (std::size_t i = 0; i < n; ++i) keys[i] = {5, i, 1};
    const Tensor logits = f32_rows(std::vector<std::vector<float>>(n, tied));
    Tensor ids(DType::kI32, {64}), one(DType::kI32, {1});
    sample(ctx, {ids, logits, params.data(), keys.data()});
    std::set<std::int32_t> drawn;
    for (std::size_t i = 0; i < n; ++i) {
      drawn.insert(ids.data<std::int32_t>()[i]);
      sample(ctx, {one, rows(logits.view(), 0, 1), params.data(), &keys[i]});
      EXPECT_EQ(one.data<std::int32_t>()[0], ids.data<std::int32_t>()[i]);
    }
    EXPECT_EQ(drawn, (std::set<std::int32_t>{1, 2}));
    sample(ctx, {ids, logits, greedy.data(), keys.data()});
    for (std::size_t i = 0; i < n; ++i) EXPECT_EQ(ids.data<std::int32_t>()[i], 1);
  });
}

// Division by a temperature of zero, or by one so small that its inverse is infinite.
TEST(FailureModes, fm08_TemperatureZeroIsGreedyAndWhatCannotBeDividedByIsRefused) {
  each_backend([](Context& ctx) {
    const Tensor logits = f32_rows({{-1, 3, 3, 0.5f}});
    const SamplingParams zero{.temperature = 0, .top_k = 1, .top_p = 0.1f, .min_p = 0.9f};
    const SampleKey key;
    Tensor id(DType::kI32, {1});
    sample(ctx, {id, logits, &zero, &key});
    EXPECT_EQ(id.data<std::int32_t>()[0], 1);
    for (std::int32_t target : {0, 1, 2, 3}) {
      const Scored s = score(ctx, logits, {target}, zero);
      EXPECT_TRUE(same_bits(s.logp, score(ctx, logits, {target}).logp));
      EXPECT_TRUE(std::isfinite(value(s.logp, 0)));
    }
    for (float temperature : {-0.5f, 1e-39f, kNan, kInf, -kInf}) {
      const SamplingParams bad{.temperature = temperature};
      expect_error(ErrorCode::kInvalidArgument, {"temperature"},
                   [&] { score(ctx, logits, {1}, bad); });
      expect_error(ErrorCode::kInvalidArgument, {"temperature"}, [&] {
        sample(ctx, {id, logits, &bad, &key});
      });
    }
    // The smallest that is accepted neither overflows silently nor divides by zero.
    expect_error(ErrorCode::kNonFinite, {"row 0"},
                 [&] { score(ctx, logits, {1}, {.temperature = 1e-37f}); });
  });
}

// exp(1e10) * 0 = NaN at masked positions of the ratio and of the KL term.
TEST(FailureModes, fm09_MaskedTokensMeetNoExponential) {
  each_backend([](Context& ctx) {
    for (Kl kl : {Kl::kNone, Kl::kK1, Kl::kK2, Kl::kK3}) {
      const Tensor logp = f32_tensor({-1, 1e10f, -1e10f, kNan, kInf, -2});
      const Tensor old = f32_tensor({-1.125f, -1e10f, 1e10f, 0, -kInf, -2});
      const Tensor ref = f32_tensor({-1.5f, 1e10f, -kInf, kNan, kInf, -1});
      const Tensor advantage = f32_tensor({1, kNan, kInf, 1, -1, -1});
      Tensor weight = f32_tensor({0.5f, 0, 0, 0, 0, 0.5f});
      Tensor g(DType::kF32, {6}), term(DType::kF32, {6}), kl_value(DType::kF32, {6}),
          ratio(DType::kF32, {6});
      GrpoLossArgs args;
      args.g = g;
      args.pg_loss = term;
      args.kl = kl_value;
      args.ratio = ratio;
      args.logp = logp;
      args.old = old;
      args.ref = ref;
      args.advantage = advantage;
      args.weight = weight;
      args.beta = 0.1f;
      args.kl_type = kl;
      grpo_loss(ctx, args);
      for (std::int64_t t = 1; t < 5; ++t) {
        for (const Tensor* out : {&g, &term, &kl_value, &ratio}) {
          EXPECT_EQ(std::bit_cast<std::uint32_t>(value(*out, t)), 0u) << t;
        }
      }
      EXPECT_LT(value(g, 0), 0.0f);
      EXPECT_GT(value(g, 5), 0.0f);
      // Unmasked, the same tokens stop the step.
      weight.data<float>()[1] = 0.5f;
      expect_error(ErrorCode::kNonFinite, {"grpo_loss", "row 1"}, [&] { grpo_loss(ctx, args); });
    }
  });
}

// Rollout log-probabilities that pass through BF16 on their way to the trainer.
TEST(FailureModes, fm10_RolloutLogprobsKeepEveryF32BitOnTheirWay) {
  const Completion& c = sharp_completion();
  std::vector<float> rounded = c.logprobs;
  for (float& x : rounded) x = numerics::round_bf16(x);
  EXPECT_FALSE(same_bytes(rounded, c.logprobs));  // they would not survive BF16

  Record rollout = record("rollout"), trainer = record("trainer");
  rollout.samples = trainer.samples = {record_of(c, kSharp, 0)};
  trainer.samples[0].logprobs = rounded;
  EXPECT_EQ(compare(rollout, trainer).status, CompareStatus::kDiffers);

  std::ostringstream out;
  write_record(out, rollout);
  std::istringstream in(out.str());
  EXPECT_TRUE(same_bytes(read_record(in, "record").samples[0].logprobs, c.logprobs));
}

// A value compared with its own copy is always equal; a signed mean hides errors.
TEST(FailureModes, fm11_TheTwoSidesAreIndependentAndErrorsDoNotCancel) {
  const Completion& c = sharp_completion();
  Record rollout = record("rollout");
  rollout.samples = {record_of(c, kSharp, 0)};
  Record copy = rollout;
  copy.name = "trainer";
  expect_error(ErrorCode::kInvalidArgument, {"copies"}, [&] { compare(rollout, copy); });
  expect_error(ErrorCode::kInvalidArgument, {"one record"}, [&] { compare(rollout, rollout); });

  // The trainer's value does not come from the recorded one.
  TestTrainer t{{}};
  TrainSample s = sample_of(c, kSharp);
  s.old_logprobs.assign(s.old_logprobs.size(), -0.125f);
  EXPECT_TRUE(same_bytes(t.trainer.score({&s, 1})[0], c.logprobs));

  Record trainer = rollout;
  trainer.name = "trainer";
  trainer.provenance = "run/trainer";
  rollout.samples[0].logprobs.assign(c.logprobs.size(), -1);
  trainer.samples[0].logprobs = rollout.samples[0].logprobs;
  trainer.samples[0].logprobs[0] = -0.5f;
  trainer.samples[0].logprobs[1] = -1.5f;
  const Comparison found = compare(rollout, trainer);
  EXPECT_EQ(found.mismatch_count, 2);
  EXPECT_EQ(found.max_abs_diff, 0.5);
  EXPECT_EQ(found.sum_abs_diff, 1.0);  // and not 0
  EXPECT_NE(to_text(found).find("rollout"), std::string::npos);
  EXPECT_NE(to_text(found).find("trainer"), std::string::npos);
}

// Nothing was compared, and that was read as a pass.
TEST(FailureModes, fm12_AnEmptyComparisonFails) {
  Record a = record("rollout"), b = record("trainer");
  EXPECT_EQ(compare(a, b).status, CompareStatus::kNothingCompared);
  EXPECT_EQ(exit_code(CompareStatus::kNothingCompared), 2);
  a.samples = b.samples = {record_of(sharp_completion(), kSharp, 0)};
  for (Record* r : {&a, &b}) r->samples[0].mask.assign(r->samples[0].mask.size(), 0);
  Comparison total = compare(a, b);
  EXPECT_EQ(total.status, CompareStatus::kNothingCompared);
  merge(total, compare(a, b));
  EXPECT_EQ(total.status, CompareStatus::kNothingCompared);
  // A capture that broke off on one side is no comparison either.
  a.samples = {record_of(sharp_completion(), kSharp, 0)};
  b.samples.clear();
  EXPECT_EQ(compare(a, b).status, CompareStatus::kNotComparable);
  EXPECT_EQ(exit_code(compare(a, b).status), 2);
  EXPECT_FALSE(numerics::compare_bits(static_cast<const float*>(nullptr), nullptr, 0).equal());
}

// A tolerance makes +0 and -0 equal and leaves NaN to chance.
TEST(FailureModes, fm13_ComparisonIsByBytes) {
  const float next = std::nextafter(-1.0f, 0.0f);
  const struct {
    float a, b;
    bool equal;
  } cases[] = {{0.0f, -0.0f, false}, {kNan, kNan, false}, {-1, next, false},   {kNan, 0, false},
               {-kInf, -kInf, true}, {-1, -1, true},      {-0.0f, -0.0f, true}};
  for (const auto& k : cases) {
    EXPECT_EQ(numerics::compare_bits(&k.a, &k.b, 1).equal(), k.equal) << k.a << " " << k.b;
    Record a = record("rollout"), b = record("trainer");
    a.samples = b.samples = {record_of(sharp_completion(), kSharp, 0)};
    a.samples[0].logprobs[3] = k.a;
    b.samples[0].logprobs[3] = k.b;
    EXPECT_EQ(compare(a, b).status, k.equal ? CompareStatus::kEqual : CompareStatus::kDiffers);
    EXPECT_EQ(compare(a, b).mismatch_count, k.equal ? 0 : 1);
  }
}

}  // namespace
}  // namespace rlk::test
