// linear_logp: hidden states to log-probabilities of chosen tokens without storing the logits.
#pragma once

#include "rlk/kernels/gemm.h"
#include "rlk/kernels/logprob.h"
#include "rlk/ops/context.h"

namespace rlk {

// logits[t] = chain of hidden[t] with each row of the head, f32; then logprob (kernels/logprob.h).
// Rows are taken in tiles, so the extra memory is kLinearLogpTileBytes whatever num_tokens is.
//   logp      out  f32  [num_tokens]; 0 where the target is kIgnoreIndex
//   entropy   out  f32  [num_tokens]; optional
//   hidden    in   bf16 [num_tokens, hidden_size]
//   head      in   bf16 [vocab_padded, hidden_size]; rows past vocab_size are +0
//   packed    in   forms of the first vocab_size rows, and of the whole transpose; optional
//   targets   in   i32  [num_tokens]
//   params    in   as in LogprobArgs
// Bits    those of gemm followed by logprob, for any tile.
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
};

inline constexpr std::int64_t kLinearLogpTileBytes = std::int64_t{32} << 20;

// Errors  those of gemm and logprob.
void linear_logp(Context& ctx, const LinearLogpArgs& args);

// The logits are computed again, a tile at a time.
//   d_hidden    out     bf16 [num_tokens, hidden_size]: leaf tree over [0, vocab_padded)
//   dw, chain   in-out  f32  [vocab_padded, hidden_size], as in GemmBackwardWeightArgs
//   group_ends  in      i64, token offsets at which a group of samples closes
//   g           in      f32  [num_tokens], dLoss/dlogp
//   g_entropy   in      f32  [num_tokens], dLoss/dH; optional
struct LinearLogpBackwardArgs {
  TensorView d_hidden;
  TensorView dw;
  TensorView chain;
  ConstTensorView group_ends;
  ConstTensorView g;
  ConstTensorView g_entropy;
};

// `forward` as for linear_logp; its logp and entropy are not used.
void linear_logp_backward(Context& ctx, const LinearLogpArgs& forward,
                          const LinearLogpBackwardArgs& args);

}  // namespace rlk
