// embedding: y[t] = bf16(f32(table[id_t]) + (+0))
// All bf16 tensors of a call may be f32 instead (contract section 1, Storage). Strides are free.
#pragma once

#include "rlk/core/tensor.h"

namespace rlk {

//   y      out  bf16 [num_tokens, hidden_size]
//   table  in   bf16 [vocab_size, hidden_size]
//   ids    in   i32  [num_tokens]
// Errors  an id outside [0, vocab_size).
struct EmbeddingArgs {
  TensorView y;
  ConstTensorView table;
  ConstTensorView ids;
};

// dtable[id_t] = dtable[id_t] + f32(dy[t]), t rising: one left fold per row, in canonical order.
//   dtable  in-out  f32  [vocab_size, hidden_size]
//   dy      in      bf16 [num_tokens, hidden_size]
//   ids     in      i32  [num_tokens]
struct EmbeddingBackwardArgs {
  TensorView dtable;
  ConstTensorView dy;
  ConstTensorView ids;
};

}  // namespace rlk
