// swiglu: y = bf16(silu(g) * u),  silu(g) = g * sigmoid(g),  sigmoid(g) = 1 / (1 + exp(-g))
// All bf16 tensors of a call may be f32 instead (contract section 1, Storage). Strides are free.
#pragma once

#include "rlk/core/tensor.h"

namespace rlk {

//   y     out  bf16 [num_tokens, intermediate_size]
//   g, u  in   bf16 [num_tokens, intermediate_size], rounded products of gate and up
struct SwigluArgs {
  TensorView y;
  ConstTensorView g;
  ConstTensorView u;
};

// s = sigmoid(g);  du = bf16(dy * (g * s));  dg = bf16((dy * u) * (s * fma(g, 1 - s, 1)))
//   dg, du  out  bf16 [num_tokens, intermediate_size]; may alias g, u
struct SwigluBackwardArgs {
  TensorView dg;
  TensorView du;
  ConstTensorView dy;
  ConstTensorView g;
  ConstTensorView u;
};

}  // namespace rlk
