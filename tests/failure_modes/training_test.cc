// Failures of training, fm31 to fm37.
#include <cmath>
#include <limits>

#include "rlk/ops/gemm.h"
#include "rlk/ops/grpo_loss.h"
#include "rlk/rl/advantage.h"
#include "tests/failure_modes/each_backend.h"
#include "tests/rollout/rollout_data.h"
#include "tests/trainer/trainer_data.h"

namespace rlk::test {
namespace {

TrainerSetup plain_setup() {
  TrainerSetup setup;
  setup.options.loss = {};
  return setup;
}

// Averages of local means where the counts differ.
TEST(FailureModes, fm31_EveryTokenOfTheStepWeighsTheSameHoweverItIsCut) {
  std::vector<TrainSample> samples{train_sample(5, 40, 1, 1), train_sample(5, 3, 1, 2),
                                   train_sample(8, 11, -1, 3)};
  for (TrainSample& s : samples) s.active.assign(s.active.size(), 1);
  for (const std::vector<float>& weights : token_weights(samples, Averaging::kToken)) {
    for (float w : weights) EXPECT_EQ(w, static_cast<float>(1.0 / 54));
  }
  TrainerSetup setup = plain_setup();
  PassResult wanted = run_pass(setup, samples);
  double local_means = 0;
  for (std::int64_t tokens : {1, 20, 60}) {
    setup.options.micro_batch_tokens = tokens;
    PassResult cut = run_pass(setup, samples);
    EXPECT_TRUE(same_result(cut, wanted)) << tokens;
  }
  for (const TrainSample& s : samples) local_means += run_pass(setup, {s}).pass.sums.loss / 3;
  EXPECT_GT(std::fabs(local_means - wanted.pass.sums.loss), 1e-3);
}

// Row contributions to dW rounded to BF16 per group: another grouping, another gradient.
TEST(FailureModes, fm32_WeightGradientsStayF32BetweenMicroBatches) {
  const Tensor dy = random_tensor(DType::kBF16, {96, 17}, 1, Kind::kCancelling);
  const Tensor x = random_tensor(DType::kBF16, {96, 40}, 2);
  each_backend([&](Context& ctx) {
    const auto gradient = [&](const std::vector<std::int64_t>& cuts, bool round) {
      Tensor dw(DType::kF32, {17, 40}), chain(DType::kF32, {17, 40});
      std::int64_t begin = 0;
      for (std::int64_t end : cuts) {
        const std::int64_t close = 96 - begin;
        GemmBackwardWeightArgs args;
        args.dw = dw;
        args.chain = chain;
        args.dy = rows(dy.view(), begin, end);
        args.x = rows(x.view(), begin, end);
        args.group_ends = view(&close, {end == 96 ? 1 : 0});
        gemm_backward_weight(ctx, args);
        for (std::int64_t i = 0; round && i < dw.size(); ++i) {
          for (Tensor* t : {&dw, &chain}) {
            t->data<float>()[i] = numerics::round_bf16(t->data<float>()[i]);
          }
        }
        begin = end;
      }
      return dw;
    };
    const Tensor wanted = gradient({96}, false);
    const std::vector<std::int64_t> groups{16, 32, 48, 64, 80, 96};
    for (const auto& cuts : {std::vector<std::int64_t>{1, 96}, groups, {50, 96}}) {
      EXPECT_TRUE(same_bits(gradient(cuts, false), wanted));
    }
    EXPECT_FALSE(same_bits(gradient(groups, true), gradient({50, 96}, true)));
  });
}

// A fully masked sample counted as one token, or as a sample of its own.
TEST(FailureModes, fm33_AMaskedSampleCountsAsNothing) {
  std::vector<TrainSample> samples{train_sample(5, 12, 1, 1), train_sample(9, 20, -1, 2)};
  std::vector<TrainSample> with_masked = samples;
  with_masked.insert(with_masked.begin() + 1, train_sample(7, 15, 3, 3));
  with_masked[1].active.assign(15, 0);
  with_masked.push_back(train_sample(7, 0, 3, 4));  // and one without a response
  for (const Averaging averaging : {Averaging::kToken, Averaging::kSample}) {
    const auto wanted = token_weights(samples, averaging);
    const auto weights = token_weights(with_masked, averaging);
    EXPECT_EQ(weights[0], wanted[0]);
    EXPECT_EQ(weights[2], wanted[1]);
    EXPECT_EQ(weights[1], std::vector<float>(15, 0.0f));
    TrainerSetup setup = plain_setup();
    setup.options.loss.averaging = averaging;
    const TrainPass a = run_pass(setup, samples).pass, b = run_pass(setup, with_masked).pass;
    EXPECT_EQ(a.sums.loss, b.sums.loss);
    EXPECT_EQ(a.sums.active, b.sums.active);
  }
  double sum = 0;  // 1/2 a sample, over its own active tokens
  const auto per_sample = token_weights(with_masked, Averaging::kSample);
  for (float w : per_sample[0]) sum += w;
  EXPECT_NEAR(sum, 0.5, 1e-6);
}

// loss + 0 * logits.sum(): one infinity somewhere becomes a NaN loss.
TEST(FailureModes, fm34_WhatIsMaskedIsNotMultipliedByZero) {
  const float inf = std::numeric_limits<float>::infinity();
  EXPECT_TRUE(std::isnan(1.0f + 0.0f * inf));
  each_backend([&](Context& ctx) {
    const Tensor logits = f32_rows({{0, 1, 2}, {inf, 0, -inf}});
    const Scored s = score(ctx, logits, {1, kIgnoreIndex});
    EXPECT_EQ(value(s.logp, 0) + value(s.logp, 1), value(s.logp, 0));
    Tensor g = f32_tensor({0, 0}), d(DType::kBF16, {2, 3});
    std::fill_n(d.data<bf16>(), 6, numerics::to_bf16(1));
    const Tensor targets = i32_tensor({1, 2});
    const SamplingParams params;
    logprob_backward(ctx, {d, logits, targets, g, {}, &params, 1});
    for (int i = 0; i < 6; ++i) EXPECT_EQ(d.data<bf16>()[i].bits, 0);
  });
  // A step in which nothing is active: loss 0, a gradient of zeros, unchanged weights.
  TrainerSetup setup;
  std::vector<TrainSample> samples{train_sample(5, 12, 1, 1), train_sample(9, 20, -1, 2)};
  for (TrainSample& s : samples) {
    s.active.assign(s.active.size(), 0);
    s.old_logprobs.assign(s.old_logprobs.size(), -inf);
    s.advantage = inf;
  }
  PassResult found = run_pass(setup, samples);
  EXPECT_EQ(found.pass.sums.loss, 0.0);
  EXPECT_EQ(found.pass.sums.active, 0.0);
  EXPECT_EQ(found.step.grad_norm, 0.0);
  for (const ParameterRef& ref : list(found.gradient)) {
    for (std::int64_t i = 0; i < ref.tensor->size(); ++i) {
      ASSERT_EQ(std::bit_cast<std::uint32_t>(ref.tensor->data<float>()[i]), 0u) << ref.name;
    }
  }
}

// Tied embeddings refused by the strict path, or a gradient that misses one of the two uses.
TEST(FailureModes, fm35_TiedEmbeddingsRunStrictAndGetBothGradients) {
  const Contract contract = tiny_contract();
  TrainerSetup tied = plain_setup(), untied = plain_setup();
  untied.config = tiny_config("qwen3", false);
  Parameters weights = tiny_weights(tied.config, contract);
  Parameters separate = make_parameters(untied.config, 64, DType::kBF16);
  {
    const std::vector<ParameterRef> from = list(weights);
    for (const ParameterRef& to : list(separate)) {
      const std::string name = to.name == "lm_head" ? "embed_tokens" : to.name;
      for (const ParameterRef& f : from) {
        if (f.name == name) *to.tensor = *f.tensor;
      }
    }
  }
  EXPECT_TRUE(same_bits(separate.lm_head, weights.embed_tokens));
  Context a(contract, all_ops(Mode::kStrict), 1), b(contract, all_ops(Mode::kStrict), 1);
  Trainer one(a, tied.config, tied.options, weights, 0);
  Trainer two(b, untied.config, untied.options, separate, 0);
  const std::vector<TrainSample> samples = batch_record();
  EXPECT_TRUE(same_logprobs(one.accumulate(samples).logprobs, two.accumulate(samples).logprobs));
  one.apply();
  two.apply();
  const Tensor& sum = one.optimizer().state().m.embed_tokens;
  Parameters& parts = two.optimizer().state().m;
  bool both = false;
  for (std::int64_t i = 0; i < sum.size(); ++i) {
    const float head = value(parts.lm_head, i), embedding = value(parts.embed_tokens, i);
    ASSERT_EQ(value(sum, i), head + embedding) << i;
    both = both || (head != 0 && embedding != 0);
  }
  EXPECT_TRUE(both);
  // After the update rollout and trainer agree on the tied matrix in both its uses.
  TestEngine rollout{{}};
  rollout.engine.load_weights(one.weights(), 1);
  const Completion c = rollout.engine.generate({request(1, 12, 10)})[0];
  TrainSample s = train_sample(12, 10, 1, 1);
  s.token_ids = c.prompt_token_ids;
  s.token_ids.insert(s.token_ids.end(), c.token_ids.begin(), c.token_ids.end());
  EXPECT_TRUE(same_bytes(one.score({&s, 1})[0], c.logprobs));
}

// Advantages normalised over the batch, or over groups that straddle prompts.
TEST(FailureModes, fm36_AdvantagesAreNormalisedWithinTheirGroup) {
  const std::vector<double> rewards{0, 1, 0, 1, 10, 12, 11, 17, 5, 5, 5, 5};
  Context ctx({}, all_ops(Mode::kStrict), 1);
  std::vector<float> all(12), one(4), whole(12), shifted(12);
  group_advantages(ctx, all, rewards, 4, 1e-6, 1);
  for (std::size_t group = 0; group < 3; ++group) {
    group_advantages(ctx, one, {rewards.data() + 4 * group, 4}, 4, 1e-6, 1);
    EXPECT_TRUE(same_bytes({all.begin() + 4 * static_cast<std::ptrdiff_t>(group),
                            all.begin() + 4 * static_cast<std::ptrdiff_t>(group) + 4},
                           one));
  }
  EXPECT_LT(all[0], 0.0f);  // though every reward of the first group is below the mean of all
  EXPECT_GT(all[1], 0.0f);
  group_advantages(ctx, whole, rewards, 12, 1e-6, 1);
  EXPECT_FALSE(same_bytes(whole, all));
  EXPECT_LT(whole[1], 0.0f);
  group_advantages(ctx, shifted, rewards, 2, 1e-6, 1);
  EXPECT_FALSE(same_bytes(shifted, all));
  for (std::int64_t size : {5, 7, 8, 0, -4}) {
    expect_error(ErrorCode::kShape, {"groups of " + std::to_string(size)},
                 [&] { group_advantages(ctx, all, rewards, size, 1e-6, 1); });
  }
}

// A response of length 0, a sequence of one token, a prompt that fills the context, equal rewards.
TEST(FailureModes, fm37_SmallestAndFullestSequencesAndEqualRewardsAreOrdinary) {
  Context one_thread({}, all_ops(Mode::kStrict), 1);
  std::vector<float> advantages(4, 9.0f);
  for (double reward : {0.0, -0.1, 1e-300, 1e300}) {
    for (int ddof : {0, 1}) {
      group_advantages(one_thread, advantages, std::vector<double>(4, reward), 4, 0.0, ddof);
      for (float a : advantages) EXPECT_EQ(std::bit_cast<std::uint32_t>(a), 0u);
    }
  }

  each_backend(
      [](Context& ctx) {
        TrainerSetup setup = plain_setup();
        setup.options.max_model_len = 32;
        Trainer trainer(ctx, setup.config, setup.options,
                        tiny_weights(setup.config, setup.contract), 0);
        const std::vector<TrainSample> samples{
            train_sample(1, 0, 1, 1),   // one token, nothing to score
            train_sample(32, 0, 1, 2),  // a prompt that fills the context
            train_sample(1, 1, 1, 3),  train_sample(1, 31, -1, 4), train_sample(31, 1, 1, 5),
        };
        const std::vector<std::vector<float>> logprobs = trainer.score(samples);
        for (std::size_t i = 0; i < samples.size(); ++i) {
          ASSERT_EQ(static_cast<std::int64_t>(logprobs[i].size()), samples[i].response_len());
          for (float x : logprobs[i]) EXPECT_TRUE(std::isfinite(x) && x <= 0);
          // Alone the same as beside the others.
          EXPECT_EQ(trainer.score({&samples[i], 1})[0], logprobs[i]);
        }
        const TrainPass pass = trainer.accumulate(samples);
        EXPECT_TRUE(std::isfinite(pass.sums.loss));
        EXPECT_TRUE(std::isfinite(trainer.apply().grad_norm));
        const TrainSample too_long = train_sample(1, 32, 1, 6);
        expect_error(ErrorCode::kInvalidArgument, {"33 tokens", "32"}, [&] {
          trainer.score({&too_long, 1});
        });
      },
      tiny_contract());

  RolloutSetup setup;
  setup.options.max_model_len = 32;
  TestEngine t(setup);
  EXPECT_EQ(t.engine.generate({request(1, 1, 1)})[0].token_ids.size(), 1u);
  EXPECT_EQ(t.engine.generate({request(2, 31, 9)})[0].token_ids.size(), 1u);
  EXPECT_EQ(t.engine.generate({request(3, 1, 99)})[0].token_ids.size(), 31u);
  for (std::int64_t prompt_len : {0, 32, 33}) {
    expect_error(ErrorCode::kInvalidArgument, {"request 4"},
                 [&] { t.engine.add_request(request(4, prompt_len, 1)); });
  }
  EXPECT_TRUE(t.engine.idle());
}

}  // namespace
}  // namespace rlk::test
