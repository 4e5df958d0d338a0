// copy_rows: rows of one matrix go to rows of another, byte by byte: keys and values to their
// pages, hidden states of chosen tokens, and gradients back to their tokens.
#pragma once

#include <cstdint>

#include "rlk/core/tensor.h"

namespace rlk {

// y[to[i]] = x[from[i]], or +0 where from[i] is -1, for i in [0, count). T is bf16 or f32.
//   y      out  T   [num_rows, n], any strides; rows that are not named stay. Not in the memory of
//                   x. Absent: nothing is written
//   x      in   T   [num_x_rows, n], any strides
//   from   in   i64 [count], any rows of x; absent: i
//   to     in   i64 [count], rows of y, none twice; absent: i
//   bounded     numbers are checked: |x| < 2^56 (contract section 1)
// count is the length of from, else of to, else num_x_rows.
// Errors  row i: a number of x[from[i]] is not below the bound.
struct CopyRowsArgs {
  TensorView y;
  ConstTensorView x;
  ConstTensorView from;
  ConstTensorView to;
  bool bounded = false;
};

inline std::int64_t num_copies(const CopyRowsArgs& args) {
  return args.from ? args.from.shape(0) : args.to ? args.to.shape(0) : args.x.shape(0);
}

inline constexpr float kCopyBound = 0x1p56f;

}  // namespace rlk
