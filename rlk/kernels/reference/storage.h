// Numbers of a call's storage type, bf16 or f32 (docs/contract.md, section 1).
#pragma once

#include <cstdint>

#include "rlk/core/tensor.h"
#include "rlk/numerics/bf16.h"

namespace rlk::reference {

// Element (i, j, k); exact.
inline float read(const ConstTensorView& x, std::int64_t i = 0, std::int64_t j = 0,
                  std::int64_t k = 0) {
  return x.dtype == DType::kF32 ? *x.at<float>(i, j, k) : numerics::to_f32(*x.at<bf16>(i, j, k));
}

// The rounding to storage, as f32: the identity for f32, but every NaN is the same one.
inline float round_to(DType dtype, float value) {
  return dtype == DType::kF32 ? numerics::canonical_nan(value) : numerics::round_bf16(value);
}

// Element (i, j, k) = round_to(y.dtype, value).
inline void write(const TensorView& y, float value, std::int64_t i = 0, std::int64_t j = 0,
                  std::int64_t k = 0) {
  if (y.dtype == DType::kF32) {
    *y.at<float>(i, j, k) = numerics::canonical_nan(value);
  } else {
    *y.at<bf16>(i, j, k) = numerics::to_bf16(value);
  }
}

// The elements along one dimension, from (i, j, k) on: an operand of the sums in numerics/sums.h.
struct Line {
  ConstTensorView x;
  int dim;

  Line(const ConstTensorView& view, int dim, std::int64_t i = 0, std::int64_t j = 0,
       std::int64_t k = 0)
      : x(view), dim(dim) {
    x.data = view.dtype == DType::kF32 ? static_cast<const void*>(view.at<float>(i, j, k))
                                       : static_cast<const void*>(view.at<bf16>(i, j, k));
  }
  float operator()(std::int64_t n) const {
    const std::int64_t at = n * x.stride(dim);
    return x.dtype == DType::kF32 ? static_cast<const float*>(x.data)[at]
                                  : numerics::to_f32(static_cast<const bf16*>(x.data)[at]);
  }
};

}  // namespace rlk::reference
