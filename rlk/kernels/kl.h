// kl: per-token estimates of the divergence from the reference model, and their slopes.
#pragma once

#include <cstdint>

#include "rlk/core/tensor.h"

namespace rlk {

enum class Kl : std::uint8_t { kNone, kK1, kK2, kK3 };

// b = logp - ref;  k1: b, slope 1;  k2: 0.5 * (b * b), slope b;
//                  k3: (exp(-b) - 1) + b, slope 1 - exp(-b);  none: +0, slope +0
//   kl         out  f32 [num_tokens], the value; +0 where weight is 0
//   slope      out  f32 [num_tokens], d value / d logp; +0 where weight is 0; optional
//   logp, ref  in   f32 [num_tokens]
//   weight     in   f32 [num_tokens], 0 for masked tokens, which are not looked at; optional: no
//              token is masked
// Errors  row: the token's value is not finite.
// Source  Schulman 2020, "Approximating KL divergence"; k1, k2, k3 are its names.
struct KlArgs {
  TensorView kl;
  TensorView slope;
  ConstTensorView logp;
  ConstTensorView ref;
  ConstTensorView weight;
  Kl kl_type = Kl::kK3;
};

}  // namespace rlk
