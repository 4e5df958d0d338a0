// A model of eight tokens, forward and backward, through every kernel of a table: the
// log-probabilities, gradients and norm of the CPU.
#include "rlk/kernels/gpu/gpu.h"
#include "tests/gpu/gpu_test.h"
#include "tests/trainer/trainer_data.h"

namespace rlk::test {
namespace {

std::vector<TrainSample> eight_tokens() {
  return {train_sample(2, 3, 1.0f, 41), train_sample(1, 2, -0.5f, 42, {.temperature = 0.7f})};
}

PassResult run_on(const KernelTable& table, Profile profile) {
  TrainerSetup setup;
  setup.contract.profile = profile;
  setup.config.num_hidden_layers = 2;
  // Conformance is tried by the programs beside this one.
  Context ctx(setup.contract, all_ops(Mode::kStrict), 1, &table, admit_all(table));
  Trainer trainer(ctx, setup.config, setup.options, tiny_weights(setup.config, setup.contract), 0);
  Parameters reference = tiny_weights(setup.config, setup.contract, 8);
  trainer.set_reference(reference);
  PassResult out;
  out.pass = trainer.accumulate(eight_tokens());
  out.step = trainer.apply();
  out.gradient = trainer.optimizer().state().m;
  return out;
}

TEST(HipModelInvariance, PortableOnWavesOf32And64) {
  PassResult cpu = run_on(cpu_kernels(), Profile::kPortable);
  for (const int wave : {32, 64}) {
    const emulation::Scope scope({.wave = wave, .seed = 31});
    PassResult result = run_on(gpu_kernels(), Profile::kPortable);
    EXPECT_TRUE(same_result(result, cpu)) << wave;
  }
}

TEST(HipModelInvariance, Cdna3) {
  PassResult cpu = run_on(cpu_kernels(), Profile::kCdna3);
  const emulation::Scope scope({.wave = 64, .seed = 32, .profile = Profile::kCdna3});
  PassResult result = run_on(gpu_kernels(Profile::kCdna3), Profile::kCdna3);
  EXPECT_TRUE(same_result(result, cpu));
}

TEST(HipModelInvariance, Cdna2) {
  PassResult cpu = run_on(cpu_kernels(), Profile::kCdna2);
  const emulation::Scope scope({.wave = 64, .seed = 33, .profile = Profile::kCdna2});
  PassResult result = run_on(gpu_kernels(Profile::kCdna2), Profile::kCdna2);
  EXPECT_TRUE(same_result(result, cpu));
}

TEST(HipModelTwin, AnotherProfileGivesOtherBytes) {
  PassResult portable = run_on(cpu_kernels(), Profile::kPortable);
  PassResult cdna3 = run_on(cpu_kernels(), Profile::kCdna3);
  PassResult cdna2 = run_on(cpu_kernels(), Profile::kCdna2);
  EXPECT_FALSE(same_result(portable, cdna3));
  EXPECT_FALSE(same_result(portable, cdna2));
  EXPECT_FALSE(same_result(cdna2, cdna3));
}

}  // namespace
}  // namespace rlk::test
