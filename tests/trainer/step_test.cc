// Weights of tokens, plans, learning rates, the optimizer step and checkpoints.
#include <cmath>
#include <numbers>

#include "rlk/io/safetensors.h"
#include "rlk/trainer/checkpoint.h"
#include "tests/io/error_matchers.h"
#include "tests/io/temporary_folder.h"
#include "tests/trainer/trainer_data.h"

namespace rlk::test {
namespace {

TrainSample masked(std::vector<std::uint8_t> active) {
  TrainSample s;
  s.prompt_len = 1;
  s.old_logprobs.assign(active.size(), -1.0f);
  s.token_ids.assign(active.size() + 1, 0);
  s.active = std::move(active);
  return s;
}

// One sample without an active token, one without a response.
const std::vector<TrainSample>& unequal_samples() {
  static const std::vector<TrainSample> kSamples{masked({1, 1, 0, 1}), masked({0, 0}), masked({}),
                                                 masked({1})};
  return kSamples;
}

TEST(TokenWeights, PerTokenCountsActiveTokensOfTheWholeStep) {
  const auto w = token_weights(unequal_samples(), Averaging::kToken);
  EXPECT_EQ(w[0], (std::vector<float>{0.25f, 0.25f, 0, 0.25f}));
  EXPECT_EQ(w[1], (std::vector<float>{0, 0}));
  EXPECT_TRUE(w[2].empty());
  EXPECT_EQ(w[3], (std::vector<float>{0.25f}));
}

TEST(TokenWeights, PerSampleCountsSamplesWithAnActiveTokenOnly) {
  const auto w = token_weights(unequal_samples(), Averaging::kSample);
  const auto sixth = static_cast<float>(1.0 / 6.0);
  EXPECT_EQ(w[0], (std::vector<float>{sixth, sixth, 0, sixth}));
  EXPECT_EQ(w[3], (std::vector<float>{0.5f}));
}

TEST(TokenWeights, AStepWithoutActiveTokensWeighsNothing) {
  const std::vector<TrainSample> samples{masked({0, 0})};
  for (Averaging averaging : {Averaging::kToken, Averaging::kSample}) {
    EXPECT_EQ(token_weights(samples, averaging)[0], (std::vector<float>{0, 0}));
  }
}

TEST(Plan, SlotsFollowTheRuleOfTheContract) {
  for (std::int64_t n : {0, 1, 3, 8, 13}) {
    for (std::int64_t slots : {1, 2, 4, 16}) {
      std::vector<std::int64_t> slot_of(static_cast<std::size_t>(n), -1);
      std::int64_t next = 0;
      for (std::int64_t s = 0; s < slots; ++s) {
        const SampleRange range = slot_samples(n, s, slots);
        EXPECT_EQ(range.begin, next);
        for (std::int64_t i = range.begin; i < range.end; ++i) slot_of[i] = s;
        next = range.end;
      }
      EXPECT_EQ(next, n);
      for (std::int64_t i = 0; i < n; ++i) EXPECT_EQ(slot_of[i], i * slots / n);
    }
  }
}

TEST(Plan, MicroBatchesAreWholeSamplesUpToTheLimit) {
  const std::vector<TrainSample> samples = batch_record();  // 45 33 2 180 36 32 128 20 tokens
  const auto plan = plan_micro_batches(samples, {0, 8}, 80);
  std::vector<std::int64_t> ends;
  for (const SampleRange& r : plan) ends.push_back(r.end);
  EXPECT_EQ(ends, (std::vector<std::int64_t>{3, 4, 6, 7, 8}));  // 80, 180 alone, 68, 128, 20
  EXPECT_EQ(plan_micro_batches(samples, {2, 4}, 1).size(), 2u);
  EXPECT_TRUE(plan_micro_batches(samples, {3, 3}, 80).empty());
}

TEST(PackedBatch, RowsPredictResponseTokensOnly) {
  const std::vector<TrainSample> samples = batch_record();
  PackedBatch batch;
  batch.pack({samples.data(), 3});
  EXPECT_EQ(batch.cu_seqlens, (Array<std::int32_t>{0, 45, 78, 80}));
  EXPECT_EQ(batch.row_cu_seqlens, (Array<std::int32_t>{0, 40, 40, 41}));
  ASSERT_EQ(batch.num_rows(), 41);  // 40, none, 1
  EXPECT_EQ(batch.rows.front(), 4);
  EXPECT_EQ(batch.targets.front(), samples[0].token_ids[5]);
  EXPECT_EQ(batch.rows[39], 43);
  EXPECT_EQ(batch.rows[40], 78);
  EXPECT_EQ(batch.targets[40], samples[2].token_ids[1]);
  EXPECT_EQ(batch.params[40].temperature, 0);
  EXPECT_EQ(batch.positions[45], 0);
}

TEST(LearningRate, RisesThenFollowsTheSchedule) {
  OptimizerOptions o;
  o.learning_rate = 2;
  EXPECT_EQ(learning_rate(o, 1), 2);
  o.warmup_steps = 4;
  o.total_steps = 12;
  for (LrSchedule schedule : {LrSchedule::kConstant, LrSchedule::kLinear, LrSchedule::kCosine}) {
    o.lr_schedule = schedule;
    EXPECT_EQ(learning_rate(o, 1), 0.5);
    EXPECT_EQ(learning_rate(o, 4), 2);
    EXPECT_EQ(learning_rate(o, 5), 2);
  }
  EXPECT_NEAR(learning_rate(o, 9), 1, 1e-15);  // cosine: half way
  for (std::int64_t step = 5; step <= 14; ++step) {
    const double done = std::min(1.0, static_cast<double>(step - 5) / 8);
    EXPECT_NEAR(learning_rate(o, step), 1 + std::cos(std::numbers::pi * done), 1e-12) << step;
  }
  o.lr_schedule = LrSchedule::kLinear;
  EXPECT_EQ(learning_rate(o, 7), 1.5);
  EXPECT_EQ(learning_rate(o, 12), 0.25);
  EXPECT_EQ(learning_rate(o, 13), 0);
  EXPECT_EQ(learning_rate(o, 99), 0);
}

TEST(Trainer, RefusesSamplesThatDoNotFit) {
  TestTrainer t{{}};
  const auto refused = [&](TrainSample s, const std::vector<std::string>& named) {
    const std::vector<TrainSample> samples{train_sample(2, 2, 0, 1), s};
    expect_error(ErrorCode::kInvalidArgument, named, [&] { t.trainer.score(samples); });
    expect_error(ErrorCode::kInvalidArgument, named, [&] { t.trainer.accumulate(samples); });
  };
  TrainSample s = train_sample(3, 4, 0, 2);
  s.prompt_len = 0;
  refused(s, {"sample 1", "prompt_len 0"});
  s.prompt_len = 8;
  refused(s, {"sample 1", "prompt_len 8", "7"});
  s = train_sample(3, 4, 0, 2);
  s.old_logprobs.pop_back();  // an aborted sample
  refused(s, {"sample 1", "4 response tokens", "3 old"});
  s = train_sample(3, 4, 0, 2);
  s.active.push_back(1);
  refused(s, {"sample 1", "5 mask"});
  refused(train_sample(200, 57, 0, 2), {"sample 1", "257", "256"});
  s = train_sample(3, 4, 0, 2);
  s.token_ids[5] = 53;
  refused(s, {"53", "[0, 53)"});
  s.token_ids[5] = -100;  // ignore_index is no token of a sample
  refused(s, {"-100", "[0, 53)"});
}

TEST(Trainer, NeedsAReferenceForAKlTerm) {
  const TrainerSetup setup;
  Context ctx(setup.contract, all_ops(Mode::kStrict), 1);
  Trainer trainer(ctx, setup.config, setup.options, tiny_weights(setup.config, setup.contract), 0);
  expect_error(ErrorCode::kInvalidArgument, {"reference"},
               [&] { trainer.accumulate(batch_record()); });
}

// All rewards equal, nothing but the KL and entropy terms off: the step must not move a weight.
TEST(Trainer, AStepWithoutAdvantageHasAZeroGradient) {
  TrainerSetup setup;
  setup.options.loss.kl = Kl::kNone;
  setup.options.loss.entropy_coef = 0;
  std::vector<TrainSample> samples = batch_record();
  for (TrainSample& s : samples) s.advantage = 0;
  TestTrainer t(setup);
  t.trainer.accumulate(samples);
  const OptimizerStepStats stats = t.trainer.apply();
  EXPECT_EQ(stats.grad_norm, 0);
  Parameters start = tiny_weights(setup.config, setup.contract);
  EXPECT_TRUE(same_bits(t.trainer.weights(), start));
}

// A sample that is masked as a whole, and one without a response, change nothing but the order.
TEST(Trainer, AMaskedSampleIsNoToken) {
  std::vector<TrainSample> samples{train_sample(5, 20, 1.0f, 1), train_sample(7, 9, -1.0f, 2)};
  PassResult without = run_pass({}, samples);
  samples.push_back(train_sample(20, 12, 3.0f, 3));
  samples.back().active.assign(12, 0);
  samples.back().old_logprobs.assign(12, -1e30f);  // an exponential that must not be taken
  samples.push_back(train_sample(30, 0, 3.0f, 4));
  PassResult with = run_pass({}, samples);
  EXPECT_EQ(with.pass.sums.active, without.pass.sums.active);
  EXPECT_EQ(with.pass.sums.loss, without.pass.sums.loss);
  EXPECT_TRUE(same_bits(with.gradient, without.gradient));
}

TEST(Trainer, OnlyEmptyResponsesGiveNothingAndNoError) {
  const std::vector<TrainSample> samples{train_sample(30, 0, 1.0f, 4), train_sample(1, 0, 1.0f, 5)};
  TestTrainer t{{}};
  EXPECT_TRUE(t.trainer.score(samples)[0].empty());
  EXPECT_EQ(t.trainer.accumulate(samples).sums.active, 0);
  EXPECT_EQ(t.trainer.apply().grad_norm, 0);
}

TEST(Trainer, SftIgnoresTheTermsOfGrpo) {
  const std::vector<TrainSample> samples{train_sample(5, 20, 1.0f, 1),
                                         train_sample(7, 9, -1.0f, 2)};
  TrainerSetup setup;
  setup.options.loss = LossOptions();
  setup.options.loss.type = LossType::kSft;
  PassResult plain = run_pass(setup, samples);
  setup.options.loss.entropy_coef = 0.5;
  PassResult with = run_pass(setup, samples);
  EXPECT_TRUE(same_bits(plain.gradient, with.gradient));
  double loss = 0;
  for (std::size_t s = 0; s < samples.size(); ++s) {
    for (std::size_t i = 0; i < samples[s].active.size(); ++i) {
      if (samples[s].active[i]) loss -= plain.pass.logprobs[s][i] / plain.pass.sums.active;
    }
  }
  EXPECT_NEAR(plain.pass.sums.loss, loss, 1e-6);
}

TEST(Trainer, AMaxNormScalesTheWholeGradient) {
  TrainerSetup setup;
  PassResult plain = run_pass(setup, batch_record());
  const auto norm = static_cast<float>(plain.step.grad_norm);
  setup.options.optimizer.max_grad_norm = plain.step.grad_norm / 2;
  PassResult clipped = run_pass(setup, batch_record());
  EXPECT_EQ(clipped.step.grad_norm, plain.step.grad_norm);
  const float scale = static_cast<float>(setup.options.optimizer.max_grad_norm) / norm;
  for (std::size_t i = 0; i < list(plain.gradient).size(); ++i) {
    const Tensor& a = *list(plain.gradient)[i].tensor;
    const Tensor& b = *list(clipped.gradient)[i].tensor;
    for (std::int64_t k = 0; k < a.size(); ++k) {
      ASSERT_EQ(a.data<float>()[k] * scale, b.data<float>()[k]) << list(plain.gradient)[i].name;
    }
  }
}

TEST(Trainer, WeightDecayLeavesNormsAndBiasesAlone) {
  TrainerSetup setup;
  setup.config = tiny_config("qwen2", false);
  setup.options.loss.kl = Kl::kNone;
  setup.options.loss.entropy_coef = 0;
  setup.options.optimizer.weight_decay = 10;
  TestTrainer t(setup);
  t.trainer.accumulate({});
  t.trainer.apply();
  Parameters start = tiny_weights(setup.config, setup.contract);
  for (std::size_t i = 0; i < list(start).size(); ++i) {
    const ParameterRef p = list(start)[i];
    EXPECT_EQ(p.decay, !same_bits(*p.tensor, *list(t.trainer.weights())[i].tensor)) << p.name;
  }
}

TrainerSetup adamw_setup() {
  TrainerSetup setup;
  setup.options.optimizer = OptimizerOptions();
  setup.options.optimizer.learning_rate = 1e-2;
  setup.options.optimizer.weight_decay = 0.1;
  setup.options.optimizer.warmup_steps = 3;
  return setup;
}

void train(Trainer& trainer, int steps) {
  for (int i = 0; i < steps; ++i) {
    trainer.accumulate(batch_record());
    trainer.apply();
  }
}

TEST(CheckpointInvariance, AResumedTrainerGoesOnToTheBitsOfAnUninterruptedOne) {
  TemporaryFolder folder;
  const std::string path = folder.file("trainer.safetensors");
  TestTrainer whole(adamw_setup());
  train(whole.trainer, 2);
  save_trainer_state(path, whole.trainer, {{"note", "two steps"}});
  train(whole.trainer, 2);

  TestTrainer resumed(adamw_setup());
  EXPECT_EQ(load_trainer_state(path, resumed.trainer).at("note"), "two steps");
  EXPECT_EQ(resumed.trainer.weight_version(), 2);
  train(resumed.trainer, 2);
  EXPECT_TRUE(same_bits(resumed.trainer.weights(), whole.trainer.weights()));
  EXPECT_TRUE(same_bits(resumed.trainer.optimizer().state().master,
                        whole.trainer.optimizer().state().master));
  EXPECT_TRUE(
      same_bits(resumed.trainer.optimizer().state().v, whole.trainer.optimizer().state().v));
  EXPECT_EQ(resumed.trainer.weight_version(), 4);
  EXPECT_TRUE(
      same_logprobs(resumed.trainer.score(batch_record()), whole.trainer.score(batch_record())));

  // Back to the checkpoint from a trainer that is further on.
  load_trainer_state(path, resumed.trainer);
  EXPECT_EQ(resumed.trainer.weight_version(), 2);
  train(resumed.trainer, 2);
  EXPECT_TRUE(same_bits(resumed.trainer.weights(), whole.trainer.weights()));
}

TEST(CheckpointTwin, WithoutTheMastersTheBitsDiffer) {
  TestTrainer whole(adamw_setup());
  train(whole.trainer, 2);
  TestTrainer rounded(adamw_setup());
  train(rounded.trainer, 2);
  for (const ParameterRef& p : list(rounded.trainer.optimizer().state().master)) {
    for (std::int64_t k = 0; k < p.tensor->size(); ++k) {
      p.tensor->data<float>()[k] = numerics::round_bf16(p.tensor->data<float>()[k]);
    }
  }
  train(whole.trainer, 2);
  train(rounded.trainer, 2);
  EXPECT_FALSE(same_bits(rounded.trainer.weights(), whole.trainer.weights()));
}

TEST(Checkpoint, RefusesWhatDoesNotFitAndLeavesTheTrainerAsItWas) {
  TemporaryFolder folder;
  const std::string path = folder.file("trainer.safetensors");
  TestTrainer t(adamw_setup());
  train(t.trainer, 1);
  save_trainer_state(path, t.trainer, {});

  TrainerSetup other = adamw_setup();
  other.contract.grad_group = 128;
  TestTrainer other_contract(other);
  expect_error(ErrorCode::kContract, {path, "backward_digest"},
               [&] { load_trainer_state(path, other_contract.trainer); });

  other = adamw_setup();
  other.config.num_hidden_layers = 4;
  TestTrainer deeper(other);
  Parameters before = deeper.trainer.optimizer().state().master;
  expect_error(ErrorCode::kFormat, {path, "master.layers.3"},
               [&] { load_trainer_state(path, deeper.trainer); });
  EXPECT_TRUE(same_bits(deeper.trainer.optimizer().state().master, before));

  other = adamw_setup();
  other.config.intermediate_size = 64;
  TestTrainer narrower(other);
  expect_error(ErrorCode::kFormat, {path, "gate_up_proj", "[192, 64]", "[128, 64]"},
               [&] { load_trainer_state(path, narrower.trainer); });

  const SafetensorsFile file(path);
  std::vector<NamedTensor> tensors;
  for (const std::string& name : file.names()) tensors.push_back({name, file.tensor(name)});
  for (const char* key :
       {"format", "backward_digest", "optimizer_step", "beta2_power", "weight_version"}) {
    auto metadata = file.metadata();
    metadata.erase(key);
    write_safetensors(folder.file("broken"), tensors, metadata);
    expect_error(ErrorCode::kFormat, {"broken", key},
                 [&] { load_trainer_state(folder.file("broken"), t.trainer); });
  }
  auto metadata = file.metadata();
  metadata["optimizer_step"] = "many";
  write_safetensors(folder.file("broken"), tensors, metadata);
  expect_error(ErrorCode::kFormat, {"broken", "not a number"},
               [&] { load_trainer_state(folder.file("broken"), t.trainer); });
}

}  // namespace
}  // namespace rlk::test
