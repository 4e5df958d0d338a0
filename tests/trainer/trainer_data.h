// A batch record of samples that cross blocks and groups, and what a trainer makes of it.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "rlk/trainer/trainer.h"
#include "tests/model/tiny_model.h"

namespace rlk::test {

struct TrainerSetup {
  Contract contract = tiny_contract();
  ModelConfig config = tiny_config();
  const KernelTable* kernels = nullptr;
  int num_threads = 1;
  TrainerOptions options;

  // All terms of the loss; and moments that are the gradient itself after one step.
  TrainerSetup() {
    options.max_model_len = 256;
    options.micro_batch_tokens = 100000;
    options.loss.kl = Kl::kK3;
    options.loss.kl_coef = 0.05;
    options.loss.entropy_coef = 0.01;
    options.optimizer.adam_beta1 = 0;
    options.optimizer.max_grad_norm = 0;
    options.optimizer.learning_rate = 1e-2;
  }
};

struct TestTrainer {
  Context ctx;
  Trainer trainer;

  explicit TestTrainer(const TrainerSetup& s)
      : ctx(s.contract, all_ops(Mode::kStrict), s.num_threads, s.kernels),
        trainer(ctx, s.config, s.options, tiny_weights(s.config, s.contract), 0) {
    if (s.options.loss.kl == Kl::kNone) return;
    Parameters reference = tiny_weights(s.config, s.contract, 8);
    trainer.set_reference(reference);
  }
};

inline TrainSample train_sample(std::int64_t prompt_len, std::int64_t response_len, float advantage,
                                std::uint64_t seed, const SamplingParams& sampling = {}) {
  TrainSample s;
  s.token_ids = random_tokens(prompt_len + response_len, seed);
  s.prompt_len = prompt_len;
  s.sampling = sampling;
  s.advantage = advantage;
  Rng rng(seed);
  for (std::int64_t i = 0; i < response_len; ++i) {
    s.old_logprobs.push_back(static_cast<float>(-3.0 + 0.5 * rng.normal()));
    s.active.push_back(rng.below(5) != 0);
  }
  return s;
}

// Zero-length responses, a single token, a sample that is masked as a whole, no advantage.
inline std::vector<TrainSample> batch_record() {
  std::vector<TrainSample> out{
      train_sample(5, 40, 1.0f, 1),
      train_sample(33, 0, 0.7f, 2),
      train_sample(1, 1, -1.5f, 3, {.temperature = 0}),
      train_sample(150, 30, -0.5f, 4, {.temperature = 0.7f}),
      train_sample(16, 20, 2.0f, 5),
      train_sample(20, 12, 0.0f, 6),
      train_sample(64, 64, -0.25f, 7),
      train_sample(3, 17, 0.5f, 8, {.temperature = 1.3f}),
  };
  out[4].active.assign(20, 0);
  return out;
}

struct PassResult {
  TrainPass pass;
  Parameters gradient;  // embedding and head of a tied model already added
  OptimizerStepStats step;
};

inline PassResult run_pass(const TrainerSetup& setup, const std::vector<TrainSample>& samples) {
  TestTrainer t(setup);
  PassResult out;
  out.pass = t.trainer.accumulate(samples);
  out.step = t.trainer.apply();
  out.gradient = t.trainer.optimizer().state().m;
  return out;
}

inline testing::AssertionResult same_logprobs(const std::vector<std::vector<float>>& a,
                                              const std::vector<std::vector<float>>& b) {
  if (a.empty() || a.size() != b.size()) return testing::AssertionFailure() << "other samples";
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (!(a[i].empty() && b[i].empty()) && !same_bytes(a[i], b[i])) {
      return testing::AssertionFailure() << "sample " << i << " differs";
    }
  }
  return testing::AssertionSuccess() << "the same bytes";
}

inline testing::AssertionResult same_result(PassResult& a, PassResult& b) {
  if (const auto same = same_logprobs(a.pass.logprobs, b.pass.logprobs); !same) return same;
  if (a.pass.sums.loss != b.pass.sums.loss || a.pass.sums.kl != b.pass.sums.kl ||
      a.pass.sums.entropy != b.pass.sums.entropy || a.pass.sums.active != b.pass.sums.active) {
    return testing::AssertionFailure() << "other sums";
  }
  if (a.step.grad_norm != b.step.grad_norm) return testing::AssertionFailure() << "other norm";
  return same_bits(a.gradient, b.gradient);
}

}  // namespace rlk::test
