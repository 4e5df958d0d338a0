// The trainer: scores samples, accumulates gradients in canonical order, and steps the optimizer.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "rlk/model/backward.h"
#include "rlk/trainer/loss.h"
#include "rlk/trainer/optimizer.h"
#include "rlk/trainer/packed_batch.h"

namespace rlk {

struct TrainerOptions {
  std::int64_t max_model_len = 0;
  std::int64_t micro_batch_tokens = 2048;
  LossOptions loss;
  OptimizerOptions optimizer;
};

// What one pass over the samples of an optimizer step found.
struct TrainPass {
  std::vector<std::vector<float>> logprobs;  // per sample, per response token
  LossSums sums;
  double forward_s = 0;  // forward and log-probabilities, the reference model included
  double backward_s = 0;
};

class Trainer {
 public:
  // Starts from `weights` as version `weight_version`. ctx and the trainer live together.
  Trainer(Context& ctx, const ModelConfig& config, const TrainerOptions& options,
          const Parameters& weights, std::int64_t weight_version);
  ~Trainer();

  // The frozen reference model of the KL term.
  void set_reference(Parameters& weights);

  // Log-probabilities of the response tokens under the current weights, from the tokens alone.
  std::vector<std::vector<float>> score(std::span<const TrainSample> samples);

  // Forward, loss and backward of all samples of one optimizer step. The gradient waits for
  // apply().
  TrainPass accumulate(std::span<const TrainSample> samples);

  // The optimizer step with the accumulated gradient; the weights get the next version.
  OptimizerStepStats apply();

  // The current weights and their version, for the rollout engine and for checkpoints.
  Parameters& weights() { return weights_; }
  std::int64_t weight_version() const { return model_.weight_version(); }
  Optimizer& optimizer() { return optimizer_; }
  const Model& model() const { return model_; }
  Context& context() { return ctx_; }

  // After a checkpoint was read into weights() and optimizer(): goes on from there.
  void restore(std::int64_t weight_version);

 private:
  struct Scratch;
  void run_micro_batch(std::int64_t first_sample, std::span<const TrainSample> samples,
                       std::span<const std::vector<float>> weights, TrainPass& pass);
  void merge_slot(Parameters gradient);

  Context& ctx_;
  TrainerOptions options_;
  Parameters weights_;
  Model model_;
  std::unique_ptr<Model> reference_;
  Optimizer optimizer_;
  Activations activations_;
  Activations score_activations_;
  BackwardBuffers buffers_;
  GradientAccumulator accumulator_;
  std::unique_ptr<Scratch> scratch_;
  // Merged slots of the neighbour tree: at most one per level, lower levels last.
  struct MergedSlots {
    int level;
    Parameters gradient;
  };
  std::vector<MergedSlots> slots_;
  Parameters spare_;  // of a gradient that is done: memory for the next, whatever it holds
};

}  // namespace rlk
