// rope: rotates half-split pairs (i, i + d/2) by the position's angle.
// All bf16 tensors of a call may be f32 instead (contract section 1, Storage). Strides are free.
#pragma once

#include "rlk/core/tensor.h"

namespace rlk {

// forward:   y1 = bf16(fma(x1, cos, -(x2 * sin))),  y2 = bf16(fma(x2, cos, x1 * sin))
// backward:  y1 = bf16(fma(x1, cos, x2 * sin)),     y2 = bf16(fma(x2, cos, -(x1 * sin)))
//   y          out  bf16 [num_tokens, heads, d]; may alias x
//   x          in   bf16 [num_tokens, heads, d]; d even
//   cos, sin   in   f32  [max_position, d / 2], correctly rounded (numerics/rope_table.h)
//   positions  in   i32  [num_tokens]
// Errors  |y| >= 2^56 or NaN in forward: row is token * heads + head.
struct RopeArgs {
  TensorView y;
  ConstTensorView x;
  ConstTensorView cos;
  ConstTensorView sin;
  ConstTensorView positions;
};

}  // namespace rlk
