// linear_logp: hidden states to log-probabilities of chosen tokens without storing the logits.
#pragma once

#include "rlk/kernels/gemm.h"
#include "rlk/kernels/logprob.h"

namespace rlk {

// logits[t] = chain of hidden[t] with each row of the head, f32; then logprob.
//   logp      out  f32 [num_tokens]; 0 where the target is kIgnoreIndex
//   entropy   out  f32 [num_tokens], from the same pass; optional
//   hidden    in   bf16 or f32 [num_tokens, hidden_size]
//   head      in   of the same type [vocab_padded, hidden_size]; rows past vocab_size are +0
//   packed    in   forms of the first vocab_size rows, and of the whole transpose; optional
//   targets   in   i32 [num_tokens]
//   params    in   as in LogprobArgs
//   state     out  i32 [num_tokens, kLogprobStateWords], for backward on the same weights; optional
// Bits    those of gemm followed by logprob.
// Errors  those of logprob.
//
// An operator of its own and not gemm and logprob one after the other, because what makes it fast
// is inside a backend: logits that never leave the cache, and sums over the vocabulary that stay
// open from one block of columns to the next. The extra memory is below kLinearLogpBytes (a part of
// it grows with hidden_size and with threads) however many rows there are.
struct LinearLogpArgs {
  TensorView logp;
  TensorView entropy;
  ConstTensorView hidden;
  ConstTensorView head;
  std::int64_t vocab_size = 0;
  const PackedWeight* packed_forward = nullptr;
  const PackedWeight* packed_backward = nullptr;
  ConstTensorView targets;
  const SamplingParams* params = nullptr;
  std::int64_t num_params = 1;
  TensorView state = {};
};

inline constexpr std::int64_t kLinearLogpBytes = std::int64_t{64} << 20;

// The logits are computed again, a block at a time. Without the state of forward a backend that
// does not keep whole rows computes them twice.
//   forward     in      as it was called; logp and entropy are not used, `state` is read
//   d_hidden    out     as hidden [num_tokens, hidden_size]: leaf tree over [0, vocab_padded)
//   dw, chain   in-out  f32 [vocab_padded, hidden_size], as in GemmBackwardWeightArgs
//   group_ends  in      i64, token offsets at which a group of samples closes
//   g           in      f32 [num_tokens], dLoss/dlogp
//   g_entropy   in      f32 [num_tokens], dLoss/dH; optional
//   cu_seqlens  in      i32 [num_samples + 1], offsets of the samples among the rows of this call,
//                       as in GemmBackwardWeightArgs; not needed in profile portable
// Bits    those of logprob_backward followed by gemm and gemm_backward_weight; dlogits has the type
//         of hidden.
struct LinearLogpBackwardArgs {
  LinearLogpArgs forward;
  TensorView d_hidden;
  TensorView dw;
  TensorView chain;
  ConstTensorView group_ends;
  ConstTensorView g;
  ConstTensorView g_entropy;
  ConstTensorView cu_seqlens = {};
};

}  // namespace rlk
