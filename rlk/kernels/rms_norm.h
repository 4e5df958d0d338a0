// rms_norm: y = bf16((x * q) * w),  q = 1 / sqrt(sum(x^2) / n + eps)
// All bf16 tensors of a call may be f32 instead (contract section 1, Storage). Strides are free.
#pragma once

#include "rlk/core/tensor.h"

namespace rlk {

//   y     out  bf16 [num_tokens, heads, n]; may alias x. heads = 1 for the norms of the stream,
//              query or KV heads for QK-norm; strides of the first two dimensions are free
//   q     out  f32  [num_tokens, heads]; optional, kept for backward
//   x     in   bf16 [num_tokens, heads, n]
//   w     in   bf16 [n]
//   eps   f32
//   residual, residual_out   optional, together: in bf16 and out bf16 [num_tokens, heads, n]; the
//              norm reads residual_out = bf16(f32(residual) + f32(x)) in place of x. residual_out
//              may alias either
// Bits    s = lane sum (norm_lanes) of x by x; one rounding to bf16, at the end.
// Errors  s not finite: row is token * heads + head.
struct RmsNormArgs {
  TensorView y;
  TensorView q;
  ConstTensorView x;
  ConstTensorView w;
  float eps = 0;
  ConstTensorView residual = {};
  TensorView residual_out = {};
};

// u_k = dy_k * w_k;  t = lane sum of u by x;  z = ((q * q) * q) * (t / n)
// dx = bf16(fma(u, q, -(x * z)))
//   dx  out  bf16 [num_tokens, heads, n]; may alias dy
struct RmsNormBackwardArgs {
  TensorView dx;
  ConstTensorView dy;
  ConstTensorView x;
  ConstTensorView w;
  ConstTensorView q;  // f32 [num_tokens, heads], from forward
};

// Token sum of fma(dy, x * q, acc): blocks of token_block tokens from each sample's first, inside a
// block a chain from +0, blocks added to dw in rising order.
//   dw          in-out  f32  [heads, n], one running sum per head
//   dy, x       in      bf16 [num_tokens, heads, n]
//   q           in      f32  [num_tokens, heads]
//   cu_seqlens  in      i32  [num_samples + 1], token offsets of the samples
struct RmsNormBackwardWeightArgs {
  TensorView dw;
  ConstTensorView dy;
  ConstTensorView x;
  ConstTensorView q;
  ConstTensorView cu_seqlens;
};

// Sum over heads at the end of a slot: heads cut at floor(i * heads / leaves), left fold inside a
// cut, neighbour tree over the cuts.
//   dw       out  f32 [n]
//   partial  in   f32 [heads, n]
struct MergeHeadsArgs {
  TensorView dw;
  ConstTensorView partial;
};

}  // namespace rlk
