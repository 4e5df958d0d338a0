// The loss of a step: per-token weights and the gradient with respect to log-probabilities.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "rlk/ops/grpo_loss.h"
#include "rlk/trainer/packed_batch.h"

namespace rlk {

enum class LossType : std::uint8_t {
  kGrpo,  // clipped policy gradient, optional KL and entropy terms
  kSft,   // -logp
};
enum class Averaging : std::uint8_t {
  kToken,   // w = 1 / active tokens of the step
  kSample,  // w = 1 / (samples with active tokens * own active tokens)
};

struct LossOptions {
  LossType type = LossType::kGrpo;
  double clip_low = 0.2;
  double clip_high = 0.2;
  Kl kl = Kl::kNone;
  double kl_coef = 0;
  double entropy_coef = 0;
  Averaging averaging = Averaging::kToken;
};

// w_t of every response token of every sample, in order; 0 where inactive. Computed in f64 and
// rounded once. A sample without active tokens counts as no sample.
std::vector<std::vector<float>> token_weights(std::span<const TrainSample> samples,
                                              Averaging averaging);

// f64 sums over active tokens in canonical order.
struct LossSums {
  double loss = 0;     // sum of w * (policy term + kl_coef * kl - entropy_coef * entropy)
  double kl = 0;       // sum of the KL value
  double entropy = 0;  // sum of the entropy
  double clipped = 0;  // tokens whose ratio left [lo, hi] against their advantage
  double active = 0;   // tokens
};

// One micro-batch of response tokens, in order; the gradients that backward starts from.
//   g          out  f32 [num_rows], dLoss/dlogp
//   g_entropy  out  f32 [num_rows], dLoss/dH; left alone where entropy_coef is 0
struct LossArgs {
  TensorView g;
  TensorView g_entropy;
  ConstTensorView logp;
  ConstTensorView entropy;
  ConstTensorView ref;  // required for a KL term
  std::span<const TrainSample> samples;
  std::span<const std::vector<float>> weights;  // token_weights of these samples
};
void loss_gradient(Context& ctx, const LossOptions& options, const LossArgs& args, LossSums& sums);

}  // namespace rlk
