// gemm: matrix products with a fixed order along K.
#pragma once

#include <array>
#include <memory>

#include "rlk/core/tensor.h"

namespace rlk {

// A weight matrix rearranged for one backend's product kernels. A plan: never changes a bit. It
// must be packed again whenever the weight changes.
struct PackedWeight {
  const void* owner = nullptr;  // the backend that packed it; others ignore it
  std::int64_t n = 0;
  std::int64_t k = 0;
  std::shared_ptr<void> data;
  DType dtype = DType::kBF16;  // of the weight
};

// T: the storage type of the call, bf16 or f32 (docs/contract.md, section 1).

//   w  in   T [N, K], any strides (a transposed view packs the transpose)
struct PackWeightArgs {
  PackedWeight* packed;
  ConstTensorView w;
};

// c[m,n] = round( sum_k a[m,k] * b[n,k]  + bias[n] )
//   c         out  T or f32 [M, N], any strides
//   a         in   T [M, K], any strides
//   b         in   T [N, K], any strides: a Hugging Face weight forward, its transposed view for
//                  the input gradient
//   packed_b  in   b in the backend's own layout; optional
//   bias      in   T [N], any stride; optional
//   leaf_tree      false: one chain over K. true: leaf tree with contract.leaves leaves
//   segments       K cut in up to three domains (q, k, v): leaf i is one chain through leaf i of
//                  each domain in turn. {K, 0, 0} for a single domain
// Bits    sum + (+0); with a bias sum + f32(bias); one rounding to c's type.
struct GemmArgs {
  TensorView c;
  ConstTensorView a;
  ConstTensorView b;
  const PackedWeight* packed_b = nullptr;
  ConstTensorView bias;
  bool leaf_tree = false;
  std::array<std::int64_t, 3> segments{0, 0, 0};
};

// Weight gradient dW[n,k] = sum_t dy[t,n] * x[t,k] over groups of samples.
// The open chain goes on through the tokens; at each group end dw = dw + chain and chain = +0.
//   dw          in-out  f32  [N, K], closed groups
//   chain       in-out  f32  [N, K], the open group
//   dy          in      T    [num_tokens, N], any strides
//   x           in      T    [num_tokens, K], any strides
//   group_ends  in      i64  [num_group_ends], token offsets up to num_tokens that never fall; a
//                            group without tokens adds nothing
//   cu_seqlens  in      i32  [num_samples + 1], token offsets of the samples, each of which starts
//   a
//                            new group of mac; not needed in profile portable, where mac takes one
//                            product at a time
struct GemmBackwardWeightArgs {
  TensorView dw;
  TensorView chain;
  ConstTensorView dy;
  ConstTensorView x;
  ConstTensorView group_ends;
  ConstTensorView cu_seqlens = {};
};

// Bias gradient: token sum of dy (see RmsNormBackwardWeightArgs), with adds in place of fma.
//   dbias       in-out  f32  [N]
//   dy          in      T    [num_tokens, N], any strides
//   cu_seqlens  in      i32  [num_samples + 1]
struct BiasBackwardArgs {
  TensorView dbias;
  ConstTensorView dy;
  ConstTensorView cu_seqlens;
};

}  // namespace rlk
