// adamw and grad_norm: the optimizer step.
#pragma once

#include "rlk/core/tensor.h"

namespace rlk {

// m = fma(b1, m, f1 * g);  v = fma(b2, v, f2 * (g * g));  u = (m / h1) / (sqrt(v / h2) + eps)
// master = fma(-lr, fma(wd, master, u), master);  w = bf16(master)
//   w             out     bf16 [n]
//   master, m, v  in-out  f32  [n]
//   dw            in      f32  [n];  g = dw * grad_scale, or dw where grad_scale is 1
//   f1 = 1 - b1, f2 = 1 - b2, h1 = 1 - b1^step, h2 = 1 - b2^step: computed in f64, rounded once
struct AdamwArgs {
  TensorView w;
  TensorView master;
  TensorView m;
  TensorView v;
  ConstTensorView dw;
  float grad_scale = 1;
  float lr = 0;
  float b1 = 0, b2 = 0, f1 = 0, f2 = 0, h1 = 0, h2 = 0;
  float eps = 0;
  float wd = 0;
};

// Exact integer norm over every element of the tensors (contract section 6); no order.
//   norm   out  f32, one number
//   grads  in   f32 tensors of any shape without gaps
// Errors  row 0: an element is not finite.
struct GradNormArgs {
  float* norm = nullptr;
  const ConstTensorView* grads = nullptr;
  std::int64_t num_grads = 0;
};

}  // namespace rlk
