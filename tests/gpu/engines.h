// The engines on the kernels of a table, and what of their results is compared.
#pragma once

#include <bit>

#include "rlk/rollout/rollout_engine.h"
#include "rlk/trainer/trainer.h"
#include "tests/gpu/gpu_test.h"
#include "tests/model/tiny_model.h"

namespace rlk::test {

// What may be varied.
struct EngineSetup {
  Contract contract = tiny_contract();
  ModelConfig config = tiny_config();
  const KernelTable* kernels = nullptr;
  int num_threads = 1;
  Parameters random_weights;  // empty: those of tiny_weights
  RolloutOptions rollout;
  TrainerOptions trainer;

  EngineSetup() {
    config.num_hidden_layers = 1;
    contract.grad_slots = 2;
    rollout.max_model_len = 96;
    rollout.page_size = 16;
    trainer.max_model_len = 96;
    trainer.micro_batch_tokens = 1000;
    trainer.loss.entropy_coef = 0.01;
  }
  EngineSetup on(const KernelTable& table) const {
    EngineSetup s = *this;
    s.kernels = &table;
    return s;
  }
  Parameters weights() const {
    return random_weights.layers.empty() ? tiny_weights(config, contract) : random_weights;
  }
};

struct OneContext {
  Context ctx;
  explicit OneContext(const EngineSetup& s)
      : ctx(s.contract, all_ops(Mode::kStrict), s.num_threads, s.kernels, admit_all(*s.kernels)) {}
};

inline std::vector<Completion> generate(const EngineSetup& s, const std::vector<Request>& requests,
                                        RolloutStats* stats = nullptr) {
  OneContext one(s);
  RolloutEngine engine(one.ctx, s.config, s.rollout);
  Parameters weights = s.weights();
  engine.load_weights(weights, 0);
  std::vector<Completion> out = engine.generate(requests);
  if (stats) *stats = engine.stats();
  return out;
}

inline std::vector<std::vector<float>> scores(const EngineSetup& s,
                                              const std::vector<TrainSample>& samples) {
  OneContext one(s);
  return Trainer(one.ctx, s.config, s.trainer, s.weights(), 0).score(samples);
}

struct Trained {
  std::vector<std::vector<float>> scores, logprobs;
  double grad_norm = 0;
  Parameters weights, master;
};

inline Trained train(const EngineSetup& s, const std::vector<TrainSample>& samples) {
  OneContext one(s);
  Trainer trainer(one.ctx, s.config, s.trainer, s.weights(), 0);
  Trained out;
  out.scores = trainer.score(samples);
  out.logprobs = trainer.accumulate(samples).logprobs;
  out.grad_norm = trainer.apply().grad_norm;
  out.weights = copy_of(trainer.weights(), host_memory());
  out.master = copy_of(trainer.optimizer().state().master, host_memory());
  return out;
}

inline void expect_same_rows(const std::vector<std::vector<float>>& got,
                             const std::vector<std::vector<float>>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(same_bytes(got[i], want[i])) << i;
}

inline void expect_same(const Trained& got, Trained want) {
  expect_same_rows(got.scores, want.scores);
  expect_same_rows(got.logprobs, want.logprobs);
  EXPECT_EQ(std::bit_cast<std::uint64_t>(got.grad_norm),
            std::bit_cast<std::uint64_t>(want.grad_norm));
  Trained copy = got;
  EXPECT_TRUE(same_bits(copy.weights, want.weights));
  EXPECT_TRUE(same_bits(copy.master, want.master));
}

inline void expect_same(const std::vector<Completion>& got, const std::vector<Completion>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i].token_ids, want[i].token_ids);
    EXPECT_TRUE(same_bytes(got[i].logprobs, want[i].logprobs));
    EXPECT_TRUE(same_bytes(got[i].logprobs_raw, want[i].logprobs_raw));
  }
}

}  // namespace rlk::test
