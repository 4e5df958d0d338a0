// logprob and log_softmax: log-probabilities by the order-free log-sum-exp; sampling.
#pragma once

#include <cstdint>

#include "rlk/core/tensor.h"

namespace rlk {

inline constexpr std::int32_t kIgnoreIndex = -100;

// The distribution a token is drawn from: z = logit * (1 / f32(temperature)), then min-p, top-k,
// top-p. temperature 0 is greedy; its log-probability is that of temperature 1 without filters.
struct SamplingParams {
  float temperature = 1;
  std::int32_t top_k = 0;  // 0: all
  float top_p = 1;
  float min_p = 0;

  bool operator==(const SamplingParams&) const = default;
};

// What forward knows of a row and backward would have to find out again, 10 words of a backend's
// own. One that keeps nothing writes zeros; backward then looks at the row itself. A plan: no bit
// depends on it.
inline constexpr std::int64_t kLogprobStateWords = 10;

//   logp     out  f32 [num_tokens]; 0 where the target is kIgnoreIndex
//   entropy  out  f32 [num_tokens]; 0 likewise; optional
//   logits   in   f32 [num_tokens, vocab_size]
//   targets  in   i32 [num_tokens]
//   params   in   one per row, or a single one for all rows (num_params = 1)
//   state    out  i32 [num_tokens, kLogprobStateWords], for backward on the same logits; optional
// Bits    contract section 5.
// Errors  row: a logit that is NaN or infinite, or z > 2^30 (z < -2^30 is a mask: it takes no
//         part); a target outside the vocabulary or one that takes no part; a row in which nothing
//         takes part. Ignored rows are never looked at.
struct LogprobArgs {
  TensorView logp;
  TensorView entropy;
  ConstTensorView logits;
  ConstTensorView targets;
  const SamplingParams* params = nullptr;
  std::int64_t num_params = 1;
  TensorView state = {};
};

// dz_j = st((((j = target) - p_j) * g - (p_j * (logp_j + H)) * g_entropy) * iT)
//   dlogits    out  bf16 or f32 [num_tokens, vocab_padded]; padded columns, columns that take no
//                   part and rows with g = g_entropy = 0 are +0. st rounds to its type
//   g          in   f32  [num_tokens], dLoss/dlogp
//   g_entropy  in   f32  [num_tokens], dLoss/dH; optional
//   state      in   from logprob on the same logits and params; optional
struct LogprobBackwardArgs {
  TensorView dlogits;
  ConstTensorView logits;
  ConstTensorView targets;
  ConstTensorView g;
  ConstTensorView g_entropy;
  const SamplingParams* params = nullptr;
  std::int64_t num_params = 1;
  ConstTensorView state = {};
};

// y_j = f32((f64(z_j) - f64(z_max)) - c), the logp of every token; -inf where a token takes no part
// (masked, or removed by a filter).
//   y       out  f32 [num_tokens, vocab_size]; may be logits
//   logits  in   f32 [num_tokens, vocab_size]
//   params  in   as in LogprobArgs
// Bits    contract section 5.
// Errors  row: a logit that is NaN or infinite, or z > 2^30; a row in which nothing takes part.
struct LogSoftmaxArgs {
  TensorView y;
  ConstTensorView logits;
  const SamplingParams* params = nullptr;
  std::int64_t num_params = 1;
};

// dz_j = st((dy_j - p_j * s) * iT), s = lane sum of dy over the tokens that take part
//   dlogits  out  bf16 or f32 [num_tokens, vocab_padded]; padded columns and columns that take no
//                 part are +0. st rounds to its type
//   logits   in   f32 [num_tokens, vocab_size]
//   dy       in   f32 [num_tokens, vocab_size]; not looked at where a token takes no part
//   params   in   as in LogprobArgs
// Bits    contract section 6.
// Errors  row: as for log_softmax; an s that is not finite.
struct LogSoftmaxBackwardArgs {
  TensorView dlogits;
  ConstTensorView logits;
  ConstTensorView dy;
  const SamplingParams* params = nullptr;
  std::int64_t num_params = 1;
};

// What the random numbers of a draw depend on, and nothing else.
struct SampleKey {
  std::uint64_t seed = 0;
  std::uint64_t request = 0;
  std::uint32_t position = 0;
};

// Draws one token per row: the maximum of z + Gumbel noise over the tokens that take part, or of z
// where temperature is 0; ties go to the lower id.
//   token_ids  out  i32 [num_tokens]
//   logits     in   f32 [num_tokens, vocab_size]
//   params     in   [num_tokens]
//   keys       in   [num_tokens]
// Errors  as for logprob.
struct SampleArgs {
  TensorView token_ids;
  ConstTensorView logits;
  const SamplingParams* params = nullptr;
  const SampleKey* keys = nullptr;
};

}  // namespace rlk
