// ratio: r = exp(logp - old), the importance weight of each token.
#pragma once

#include "rlk/core/tensor.h"

namespace rlk {

//   ratio      out  f32 [num_tokens]; +0 where weight is 0
//   logp, old  in   f32 [num_tokens]
//   weight     in   f32 [num_tokens], 0 for masked tokens, which are not looked at; optional: no
//              token is masked
// Bits    one subtraction, exp/1 (contract section 6, Loss).
// Errors  row: the token's ratio is not finite.
// Source  Schulman et al. 2017 (PPO), equation 6.
struct RatioArgs {
  TensorView ratio;
  ConstTensorView logp;
  ConstTensorView old;
  ConstTensorView weight;
};

}  // namespace rlk
