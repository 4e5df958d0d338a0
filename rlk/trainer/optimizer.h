// AdamW over all parameters, with f32 masters and clipping by the exact global norm.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "rlk/model/parameters.h"
#include "rlk/ops/context.h"

namespace rlk {

enum class LrSchedule : std::uint8_t { kConstant, kLinear, kCosine };

struct OptimizerOptions {
  double learning_rate = 1e-5;
  LrSchedule lr_schedule = LrSchedule::kConstant;
  std::int64_t warmup_steps = 0;
  std::int64_t total_steps = 0;  // where linear and cosine end at 0
  double adam_beta1 = 0.9;
  double adam_beta2 = 0.95;
  double adam_eps = 1e-8;
  double weight_decay = 0;
  double max_grad_norm = 1;  // 0: no clipping
};

// The rate of optimizer step `step` (from 1): rises linearly to the full rate at warmup_steps, then
// constant, or falling to 0 behind the last step.
double learning_rate(const OptimizerOptions& options, std::int64_t step);

struct OptimizerStepStats {
  double grad_norm = 0;
  double learning_rate = 0;
};

class Optimizer {
 public:
  // Masters start as the exact values of `weights`. memory: of the context that runs the steps.
  Optimizer(const ModelConfig& config, std::int64_t vocab_padded, const OptimizerOptions& options,
            Parameters& weights, Memory& memory = host_memory());

  // One step: head and embedding gradients of a tied model are added, the norm is taken over all,
  // masters and moments move, and `weights` are the masters rounded to BF16.
  //   gradient  in-out; with an lm_head even when tied
  OptimizerStepStats step(Context& ctx, Parameters& gradient, Parameters& weights);

  // Everything that a later step depends on, for checkpoints.
  struct State {
    std::int64_t step = 0;
    double beta1_power = 1;  // running products b1^t and b2^t
    double beta2_power = 1;
    Parameters master, m, v;
  };
  State& state() { return state_; }

 private:
  ModelConfig config_;
  OptimizerOptions options_;
  State state_;
};

}  // namespace rlk
