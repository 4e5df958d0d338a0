// Gradients do not depend on how the samples of a step are cut, spread or computed.
#include <algorithm>
#include <cmath>

#include "tests/model/wrong_kernels.h"
#include "tests/trainer/trainer_data.h"

namespace rlk::test {
namespace {

PassResult& expected() {
  static PassResult result = run_pass({}, batch_record());
  return result;
}

TEST(Gradient, IsFiniteAndReachesEveryParameter) {
  for (const ParameterRef& p : list(expected().gradient)) {
    double largest = 0;
    for (float x : values(*p.tensor)) largest = std::max<double>(largest, std::abs(x));
    EXPECT_TRUE(std::isfinite(largest) && largest > 0) << p.name;
  }
  EXPECT_GT(expected().step.grad_norm, 0);
}

TEST(Gradient, RowsBehindTheVocabularyStayZero) {
  const Tensor& embedding = expected().gradient.embed_tokens;
  ASSERT_EQ(embedding.shape(0), 64);
  for (std::int64_t i = 53 * 64; i < embedding.size(); ++i) EXPECT_EQ(value(embedding, i), 0);
}

TEST(GradientInvariance, AnyCutIntoMicroBatchesGivesTheSame) {
  for (std::int64_t tokens : {1, 64, 100, 200, 300}) {
    TrainerSetup setup;
    setup.options.micro_batch_tokens = tokens;
    PassResult result = run_pass(setup, batch_record());
    EXPECT_TRUE(same_result(result, expected())) << tokens;
  }
}

TEST(GradientInvariance, TheReferenceAndEveryInstructionSetAgreeForAnyThreadCount) {
  for (const KernelTable* kernels : backends()) {
    const bool best = kernels == &cpu_kernels();
    for (int num_threads : best ? std::vector<int>{1, 2, 3, 4, 5, 6, 7, 8} : std::vector<int>{2}) {
      TrainerSetup setup;
      setup.kernels = kernels;
      setup.num_threads = num_threads;
      PassResult result = run_pass(setup, batch_record());
      EXPECT_TRUE(same_result(result, expected()))
          << kernels->backend << ", " << num_threads << " threads";
    }
  }
}

// The rows of every product are those of 1 to 257 samples.
TEST(GradientInvariance, MicroBatchesOf1To257SamplesGiveTheSame) {
  std::vector<TrainSample> samples;
  for (std::uint64_t i = 0; i < 257; ++i) {
    samples.push_back(train_sample(3, 3, i % 2 ? 1.0f : -0.5f, 100 + i));
  }
  TrainerSetup setup;
  setup.config.num_hidden_layers = 2;
  PassResult wanted = run_pass(setup, samples);
  for (std::int64_t n : {1, 2, 3, 8, 17, 64}) {
    setup.options.micro_batch_tokens = 6 * n;
    PassResult result = run_pass(setup, samples);
    EXPECT_TRUE(same_result(result, wanted)) << n;
  }
}

// With the matrix instruction of another chip a chain may be cut between groups of products only.
TEST(GradientInvariance, MicroBatchesAndBackendsGiveTheSameUnderTheProfilesOfOtherChips) {
  for (const Profile profile : {Profile::kSm90, Profile::kCdna3, Profile::kCdna2}) {
    TrainerSetup setup;
    setup.contract.profile = profile;
    PassResult wanted = run_pass(setup, batch_record());
    EXPECT_FALSE(same_result(wanted, expected())) << to_string(profile);
    setup.options.micro_batch_tokens = 1;
    setup.num_threads = 3;
    PassResult cut = run_pass(setup, batch_record());
    EXPECT_TRUE(same_result(cut, wanted)) << to_string(profile);
    if (profile == Profile::kSm90) continue;
    setup.kernels = &reference_kernels();
    PassResult reference = run_pass(setup, batch_record());
    EXPECT_TRUE(same_result(reference, wanted)) << to_string(profile);
  }
}

TEST(GradientInvariance, TiedOrNotWithBiasesOrWithout) {
  for (const char* model_type : {"qwen3", "qwen2", "llama"}) {
    for (bool tied : {false, true}) {
      TrainerSetup setup;
      setup.config = tiny_config(model_type, tied);
      if (setup.config.model_type == "llama") {
        setup.config.attention_bias = setup.config.attention_output_bias = true;
        setup.config.mlp_bias = true;
      }
      setup.contract.grad_slots = 2;
      PassResult wanted = run_pass(setup, batch_record());
      setup.options.micro_batch_tokens = 90;
      if (available(Isa::kAvx2)) setup.kernels = &cpu_kernels(Isa::kAvx2);
      setup.num_threads = 2;
      PassResult result = run_pass(setup, batch_record());
      EXPECT_TRUE(same_result(result, wanted)) << model_type << (tied ? " tied" : " untied");
    }
  }
}

TEST(GradientInvariance, MicroBatchesInsideSlotsGiveTheSame) {
  for (int slots : {2, 4, 16}) {
    TrainerSetup setup;
    setup.contract.grad_slots = slots;
    PassResult wanted = run_pass(setup, batch_record());
    EXPECT_TRUE(same_logprobs(wanted.pass.logprobs, expected().pass.logprobs));
    setup.options.micro_batch_tokens = 1;
    PassResult result = run_pass(setup, batch_record());
    EXPECT_TRUE(same_result(result, wanted)) << slots;
  }
}

// Four ranks, each with its own trainer and its slot's samples, merged by the neighbour tree. Every
// slot has as many active tokens as the others, so that a rank alone weighs its tokens exactly four
// times as much.
TEST(GradientInvariance, DataParallelRanksGiveTheSameAsOneTrainerWithAsManySlots) {
  std::vector<TrainSample> samples;
  for (std::uint64_t i = 0; i < 8; ++i) {
    samples.push_back(train_sample(7 + 11 * static_cast<std::int64_t>(i), 16, 1.0f, 20 + i));
    samples.back().active.assign(16, 1);
  }
  TrainerSetup setup;
  setup.config.tie_word_embeddings = false;  // head + embedding comes after the slots
  setup.contract.grad_slots = 4;
  PassResult whole = run_pass(setup, samples);

  setup.contract.grad_slots = 1;
  std::vector<Parameters> ranks;
  for (std::size_t r = 0; r < 4; ++r) {
    ranks.push_back(run_pass(setup, {samples[2 * r], samples[2 * r + 1]}).gradient);
  }
  for (std::size_t i = 0; i < list(ranks[0]).size(); ++i) {
    float* g[4];
    for (std::size_t r = 0; r < 4; ++r) g[r] = list(ranks[r])[i].tensor->data<float>();
    for (std::int64_t k = 0; k < list(ranks[0])[i].tensor->size(); ++k) {
      g[0][k] = 0.25f * ((g[0][k] + g[1][k]) + (g[2][k] + g[3][k]));
    }
  }
  EXPECT_TRUE(same_bits(ranks[0], whole.gradient));
}

// The second sample has no response and closes a group on its own.
TEST(GradientInvariance, AGroupThatClosesInAMicroBatchWithoutResponsesIsClosed) {
  const std::vector<TrainSample> samples{train_sample(8, 32, 1.0f, 31), train_sample(40, 0, 0, 32),
                                         train_sample(8, 32, -1.0f, 33)};
  TrainerSetup setup;
  PassResult wanted = run_pass(setup, samples);
  setup.options.micro_batch_tokens = 1;
  PassResult result = run_pass(setup, samples);
  EXPECT_TRUE(same_result(result, wanted));
}

// Two groups that end at one row of the head: the second adds nothing.
TEST(GradientInvariance, GroupsWithoutResponsesBehindAnotherAddNothing) {
  const std::vector<TrainSample> samples{train_sample(40, 30, 1.0f, 31), train_sample(70, 0, 0, 32),
                                         train_sample(70, 0, 0, 33), train_sample(8, 32, -1, 34)};
  TrainerSetup setup;
  setup.config.tie_word_embeddings = false;
  PassResult whole = run_pass(setup, samples);
  setup.options.micro_batch_tokens = 1;
  PassResult cut = run_pass(setup, samples);
  EXPECT_TRUE(same_result(cut, whole));
}

TEST(GradientInvariance, AFewStepsGiveTheSameWeights) {
  const auto weights_after_steps = [](std::int64_t micro_batch_tokens, int num_threads) {
    TrainerSetup setup;
    setup.options.micro_batch_tokens = micro_batch_tokens;
    setup.num_threads = num_threads;
    setup.options.optimizer = {.learning_rate = 1e-2, .weight_decay = 0.1};
    TestTrainer t(setup);
    for (int step = 0; step < 3; ++step) {
      t.trainer.accumulate(batch_record());
      t.trainer.apply();
    }
    EXPECT_EQ(t.trainer.weight_version(), 3);
    return t.trainer.weights();
  };
  Parameters a = weights_after_steps(100000, 1), b = weights_after_steps(70, 3);
  EXPECT_TRUE(same_bits(a, b));
  Parameters start = tiny_weights(tiny_config(), tiny_contract());
  EXPECT_FALSE(same_bits(a, start));
}

// ---- The same data in another order gives other bytes.

TEST(GradientTwin, AnotherOrderOfTheSamplesGivesOtherBytes) {
  std::vector<TrainSample> samples = batch_record();
  std::reverse(samples.begin(), samples.end());
  PassResult result = run_pass({}, samples);
  std::reverse(result.pass.logprobs.begin(), result.pass.logprobs.end());
  EXPECT_TRUE(same_logprobs(result.pass.logprobs, expected().pass.logprobs));
  EXPECT_FALSE(same_bits(result.gradient, expected().gradient));
}

TEST(GradientTwin, AnotherContractFieldGivesOtherBytes) {
  const auto differs = [&](const char* what, bool same_forward, auto change) {
    TrainerSetup setup;
    change(setup.contract);
    PassResult result = run_pass(setup, batch_record());
    EXPECT_EQ(static_cast<bool>(same_logprobs(result.pass.logprobs, expected().pass.logprobs)),
              same_forward)
        << what;
    EXPECT_FALSE(same_bits(result.gradient, expected().gradient)) << what;
  };
  differs("grad_slots", true, [](Contract& c) { c.grad_slots = 2; });
  differs("grad_group", true, [](Contract& c) { c.grad_group = 16; });  // one sample, one group
  differs("token_block", true, [](Contract& c) { c.token_block = 64; });
  differs("leaves", false, [](Contract& c) { c.leaves = 8; });
  differs("kv_block", false, [](Contract& c) { c.kv_block = 16; });
}

// What two plans make of the batch record with wrong kernels: log-probabilities and gradient.
void expect_other_gradient(const KernelTable& kernels, const TrainerSetup& one,
                           const TrainerSetup& other) {
  std::vector<PassResult> results;
  for (TrainerSetup setup : {one, other}) {
    setup.kernels = &kernels;
    results.push_back(run_pass(setup, batch_record()));
  }
  EXPECT_TRUE(same_logprobs(results[0].pass.logprobs, results[1].pass.logprobs));
  EXPECT_FALSE(same_bits(results[0].gradient, results[1].gradient));
}

TEST(GradientTwin, GroupsThatEndWithTheMicroBatchDependOnTheMicroBatches) {
  TrainerSetup whole, cut;
  cut.options.micro_batch_tokens = 100;
  expect_other_gradient(with_kernel<GemmBackwardWeightArgs>(&KernelTable::gemm_backward_weight,
                                                            &groups_end_with_the_call),
                        whole, cut);
}

TEST(GradientTwin, ThreadsThatAddTheirPartsDependOnTheThreads) {
  TrainerSetup one, three;
  three.num_threads = 3;
  expect_other_gradient(with_kernel<GemmBackwardWeightArgs>(&KernelTable::gemm_backward_weight,
                                                            &threads_add_their_parts),
                        one, three);
}

TEST(GradientTwin, InputGradientsThatMeetInBf16GiveOtherBytes) {
  TrainerSetup setup;
  const KernelTable wrong = with_kernel<GemmArgs>(&KernelTable::gemm, &input_gradients_add_in_bf16);
  setup.kernels = &wrong;
  PassResult result = run_pass(setup, batch_record());
  EXPECT_TRUE(same_logprobs(result.pass.logprobs, expected().pass.logprobs));
  EXPECT_FALSE(same_bits(result.gradient, expected().gradient));
}

TEST(GradientTwin, SlotsMergedByALeftFoldGiveOtherBytes) {
  std::vector<TrainSample> samples;
  for (std::uint64_t i = 0; i < 4; ++i) {
    samples.push_back(train_sample(20, 16, 1.0f, 40 + i));
    samples.back().active.assign(16, 1);
  }
  TrainerSetup setup;
  setup.config.tie_word_embeddings = false;
  setup.contract.grad_slots = 4;
  PassResult whole = run_pass(setup, samples);
  setup.contract.grad_slots = 1;
  std::vector<Parameters> ranks;
  for (std::size_t r = 0; r < 4; ++r) ranks.push_back(run_pass(setup, {samples[r]}).gradient);
  for (std::size_t i = 0; i < list(ranks[0]).size(); ++i) {
    float* g[4];
    for (std::size_t r = 0; r < 4; ++r) g[r] = list(ranks[r])[i].tensor->data<float>();
    for (std::int64_t k = 0; k < list(ranks[0])[i].tensor->size(); ++k) {
      g[0][k] = 0.25f * (((g[0][k] + g[1][k]) + g[2][k]) + g[3][k]);
    }
  }
  EXPECT_FALSE(same_bits(ranks[0], whole.gradient));
}

}  // namespace
}  // namespace rlk::test
