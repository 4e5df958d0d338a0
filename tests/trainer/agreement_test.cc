// The trainer finds the bytes that rollout recorded, from the tokens alone.
#include <algorithm>

#include "rlk/ops/logprob.h"
#include "tests/io/error_matchers.h"
#include "tests/model/wrong_kernels.h"
#include "tests/rollout/rollout_data.h"
#include "tests/trainer/completion_sample.h"
#include "tests/trainer/trainer_data.h"

namespace rlk::test {
namespace {

std::vector<Request> requests() {
  std::vector<Request> out = mixed_requests();
  out.push_back(
      request(7, 20, 40, {.temperature = 1.2f, .top_k = 9, .top_p = 0.9f, .min_p = 0.01f}));
  out.push_back(request(8, 16, 40, {.temperature = 0.6f}));
  out.back().stop_token_ids = {3, 11, 30, 41};
  return out;
}

const std::vector<Completion>& recorded() {
  static const std::vector<Completion> kRecorded = generate({}, requests());
  return kRecorded;
}

std::vector<TrainSample> samples_of(const std::vector<Completion>& completions) {
  std::vector<TrainSample> out;
  for (std::size_t i = 0; i < completions.size(); ++i) {
    out.push_back(sample_of(completions[i], requests()[i].sampling));
  }
  return out;
}

std::vector<std::vector<float>> rollout_logprobs() {
  std::vector<std::vector<float>> out;
  for (const Completion& c : recorded()) out.push_back(c.logprobs);
  return out;
}

TEST(AgreementInvariance, TheTrainerScoresTheBytesOfRolloutForEveryWayOfSampling) {
  TestTrainer t{{}};
  EXPECT_TRUE(same_logprobs(t.trainer.score(samples_of(recorded())), rollout_logprobs()));
  std::size_t tokens = 0;
  for (const Completion& c : recorded()) tokens += c.token_ids.size();
  EXPECT_GT(tokens, 200u);
}

TEST(AgreementInvariance, RawLogprobsAreThoseAtTemperatureOneWithoutFilters) {
  std::vector<TrainSample> samples = samples_of(recorded());
  for (TrainSample& s : samples) s.sampling = {};
  std::vector<std::vector<float>> raw;
  for (const Completion& c : recorded()) raw.push_back(c.logprobs_raw);
  TestTrainer t{{}};
  EXPECT_TRUE(same_logprobs(t.trainer.score(samples), raw));
}

// Filters and a reference model do not go together: its filters may exclude the token.
TrainerSetup without_kl() {
  TrainerSetup setup;
  setup.options.loss.kl = Kl::kNone;
  return setup;
}

TEST(AgreementInvariance, TheTrainingPassFindsTheSameBytesAsScoring) {
  TestTrainer t(without_kl());
  EXPECT_TRUE(
      same_logprobs(t.trainer.accumulate(samples_of(recorded())).logprobs, rollout_logprobs()));
}

TEST(AgreementInvariance, BackendThreadsAndMicroBatchesOfTheTrainerDoNotMatter) {
  for (const KernelTable* kernels : backends()) {
    for (std::int64_t tokens : {1, 150, 333}) {
      TrainerSetup setup;
      setup.kernels = kernels;
      setup.num_threads = kernels == &reference_kernels() ? 1 : 3;
      setup.options.micro_batch_tokens = tokens;
      TestTrainer t(setup);
      EXPECT_TRUE(same_logprobs(t.trainer.score(samples_of(recorded())), rollout_logprobs()))
          << kernels->backend << ", " << tokens;
    }
  }
}

TEST(AgreementInvariance, ThePackingOrderDoesNotMatter) {
  std::vector<TrainSample> samples = samples_of(recorded());
  std::reverse(samples.begin(), samples.end());
  TestTrainer t{{}};
  std::vector<std::vector<float>> scored = t.trainer.score(samples);
  std::reverse(scored.begin(), scored.end());
  EXPECT_TRUE(same_logprobs(scored, rollout_logprobs()));
}

TEST(AgreementInvariance, AfterAnOptimizerStepBothEnginesAgreeOnTheNewWeights) {
  TestTrainer t(without_kl());
  std::vector<TrainSample> samples = samples_of(recorded());
  for (std::size_t i = 0; i < samples.size(); ++i) samples[i].advantage = i % 2 ? 1.0f : -1.0f;
  t.trainer.accumulate(samples);
  t.trainer.apply();
  TestEngine rollout{{}};
  EXPECT_EQ(rollout.engine.load_weights(t.trainer.weights(), t.trainer.weight_version()), 1);
  const std::vector<Completion> next = rollout.engine.generate(requests());
  std::vector<std::vector<float>> logprobs;
  for (const Completion& c : next) logprobs.push_back(c.logprobs);
  EXPECT_TRUE(same_logprobs(t.trainer.score(samples_of(next)), logprobs));
  EXPECT_FALSE(same_completions(next, recorded()));
}

TEST(Agreement, ATargetThatTheReferenceModelFiltersOutIsAnErrorWithTheNode) {
  TestTrainer t{{}};
  expect_error(ErrorCode::kNonFinite,
               {"lm_head of the reference model", "a target that takes no part"},
               [&] { t.trainer.accumulate(samples_of(recorded())); });
}

TEST(AgreementTwin, ATrainerUnderAnotherContractScoresOtherBytes) {
  const auto differs = [&](const char* what, auto change) {
    TrainerSetup setup;
    change(setup.contract);
    TestTrainer t(setup);
    EXPECT_FALSE(same_logprobs(t.trainer.score(samples_of(recorded())), rollout_logprobs()))
        << what;
  };
  differs("kv_block", [](Contract& c) { c.kv_block = 64; });
  differs("kv_split", [](Contract& c) { c.kv_split = 128; });
  differs("leaves", [](Contract& c) { c.leaves = 8; });
}

TEST(AgreementTwin, ATrainerWithOtherRoundingsScoresOtherBytes) {
  const KernelTable residual = with_kernel<RmsNormArgs>(&KernelTable::rms_norm, &residual_in_f32);
  const KernelTable products = wrong_gemm<&vectors_split_k>();
  for (const KernelTable* kernels : {&residual, &products}) {
    TrainerSetup setup;
    setup.kernels = kernels;
    TestTrainer t(setup);
    EXPECT_FALSE(same_logprobs(t.trainer.score(samples_of(recorded())), rollout_logprobs()));
  }
}

TEST(AgreementTwin, TheWeightsOfTheNextVersionScoreOtherBytes) {
  TrainerSetup setup = without_kl();
  setup.options.optimizer.learning_rate = 1e-4;
  TestTrainer t(setup);
  std::vector<TrainSample> samples{samples_of(recorded())[0]};
  samples[0].advantage = 1;
  t.trainer.accumulate(samples);
  EXPECT_TRUE(same_bytes(t.trainer.score(samples)[0], recorded()[0].logprobs));
  t.trainer.apply();
  EXPECT_FALSE(same_bytes(t.trainer.score(samples)[0], recorded()[0].logprobs));
}

TEST(AgreementTwin, AProductionTrainerScoresOtherBytes) {
  TrainerSetup setup;
  Context ctx(setup.contract, all_ops(Mode::kOff), 1);
  Trainer trainer(ctx, setup.config, setup.options, tiny_weights(setup.config, setup.contract), 0);
  EXPECT_FALSE(same_logprobs(trainer.score(samples_of(recorded())), rollout_logprobs()));
}

TEST(AgreementTwin, AForgottenTemperatureOrFilterScoresOtherBytes) {
  const std::vector<TrainSample> samples = samples_of(recorded());
  TestTrainer t{{}};
  for (std::size_t i = 0; i < samples.size(); ++i) {
    if (samples[i].sampling.temperature == 0 || samples[i].sampling == SamplingParams{}) continue;
    TrainSample plain = samples[i];
    plain.sampling = {};
    EXPECT_FALSE(same_bytes(t.trainer.score({&plain, 1})[0], recorded()[i].logprobs)) << i;
  }
}

TEST(AgreementTwin, LogitsRoundedToBf16ScoreOtherBytes) {
  const TrainerSetup setup;
  TestTrainer t(setup);
  const std::vector<TrainSample> samples{samples_of(recorded())[0]};
  PackedBatch batch;
  batch.pack(samples);
  Activations activations(setup.config, false);
  const ConstTensorView hidden =
      forward(t.ctx, t.trainer.model(), batch.forward_batch(), nullptr, activations);
  Tensor logits(DType::kF32, {hidden.shape(0), 53}), logp(DType::kF32, {hidden.shape(0)});
  compute_logits(t.ctx, t.trainer.model(), hidden, logits);
  std::vector<std::int32_t> targets(static_cast<std::size_t>(hidden.shape(0)), kIgnoreIndex);
  for (std::int64_t i = 0; i < batch.num_rows(); ++i) targets[batch.rows[i]] = batch.targets[i];
  const Tensor target_ids = i32_tensor(targets);
  const SamplingParams params;
  const auto response_logprobs = [&] {
    logprob(t.ctx, {logp, {}, logits, target_ids, &params, 1});
    std::vector<float> out;
    for (std::int64_t row : batch.rows) out.push_back(logp.data<float>()[row]);
    return out;
  };
  EXPECT_TRUE(same_bytes(response_logprobs(), recorded()[0].logprobs));
  for (std::int64_t i = 0; i < logits.size(); ++i) {
    logits.data<float>()[i] = numerics::round_bf16(logits.data<float>()[i]);
  }
  EXPECT_FALSE(same_bytes(response_logprobs(), recorded()[0].logprobs));
}

}  // namespace
}  // namespace rlk::test
