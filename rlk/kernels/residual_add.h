// residual_add: y = bf16(f32(a) + f32(b)). Forward of the residual stream, and of its gradient.
// All bf16 tensors of a call may be f32 instead (contract section 1, Storage). Strides are free.
#pragma once

#include "rlk/core/tensor.h"

namespace rlk {

//   y     out  bf16 [num_tokens, hidden_size]; may alias a or b
//   a, b  in   bf16 [num_tokens, hidden_size]
struct ResidualAddArgs {
  TensorView y;
  ConstTensorView a;
  ConstTensorView b;
};

}  // namespace rlk
