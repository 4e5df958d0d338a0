// grpo_loss: the clipped policy-gradient loss of GRPO and PPO with an optional KL term.
#pragma once

#include "rlk/kernels/kl.h"

namespace rlk {

// r = exp(logp - old);  pg = -(A * r), or 0 where (A > 0 and r > hi) or (A < 0 and r < lo)
// kl, slope: of the kl operator for kl_type
// g = fma(beta, slope, pg) * weight;   term = -min(r * A, min(max(r, lo), hi) * A)
//   g          out  f32 [num_tokens], dLoss/dlogp; +0 where weight is 0
//   pg_loss    out  f32 [num_tokens], term; optional
//   kl         out  f32 [num_tokens], the k1, k2 or k3 value; optional
//   ratio      out  f32 [num_tokens]; optional
//   logp, old  in   f32 [num_tokens]
//   ref        in   f32 [num_tokens]; required unless kl_type is kNone
//   advantage  in   f32 [num_tokens]
//   weight     in   f32 [num_tokens], 0 for masked tokens, which are not looked at
//   lo, hi          1 - clip_low and 1 + clip_high, computed in f64 and rounded once
//   beta            coefficient of the KL term
struct GrpoLossArgs {
  TensorView g;
  TensorView pg_loss;
  TensorView kl;
  TensorView ratio;
  ConstTensorView logp;
  ConstTensorView old;
  ConstTensorView ref;
  ConstTensorView advantage;
  ConstTensorView weight;
  float lo = 0.8f;
  float hi = 1.2f;
  float beta = 0;
  Kl kl_type = Kl::kNone;
};

}  // namespace rlk
