// ppo_loss: what PPO adds to the policy loss, the clipped loss of the value head and the gradient
// of an entropy bonus.
#pragma once

#include "rlk/kernels/grpo_loss.h"

namespace rlk {

// policy: as grpo_loss. With w the policy's weight of a token, d = v - R and
// c = min(max(v, v_old - clip), v_old + clip) - R:
//   v_loss = 0.5 * max(d * d, c * c);   g_value = (value_coef * (c * c > d * d ? +0 : d)) * w
//   g_entropy = -(entropy_coef * w)
// The loss is the sum of w * (term + beta * kl + value_coef * v_loss - entropy_coef * H).
//   g_value    out  f32 [num_tokens], dLoss/dv; +0 where w is 0
//   v_loss     out  f32 [num_tokens], without value_coef; +0 where w is 0; optional
//   g_entropy  out  f32 [num_tokens], dLoss/dH; +0 where w is 0; optional
//   value      in   f32 [num_tokens], v
//   old_value  in   f32 [num_tokens], v_old, of the rollout
//   returns    in   f32 [num_tokens], R
//   value_clip      infinity: the value is not clipped
// Bits    each operation rounds to f32 (contract section 6, Loss). Of equal squares the token keeps
//         its gradient.
// Errors  row: g or g_value of the token is not finite.
// Source  Schulman et al. 2017 (PPO), equation 9, with the clipped value loss that TRL and verl
// use.
struct PpoLossArgs {
  GrpoLossArgs policy;
  TensorView g_value;
  TensorView v_loss;
  TensorView g_entropy;
  ConstTensorView value;
  ConstTensorView old_value;
  ConstTensorView returns;
  float value_clip = 0.2f;
  float value_coef = 0.5f;
  float entropy_coef = 0;
};

}  // namespace rlk
