// From a row of logits to the distribution it stands for: temperature, min-p, top-k, top-p.
#pragma once

#include <cstdint>

#include "rlk/core/workspace.h"
#include "rlk/kernels/logprob.h"
#include "rlk/numerics/sums.h"

namespace rlk::reference {

// 1 / f32(T); 1 where T is 0 (greedy).
float inverse_temperature(const SamplingParams& params);

// z[j] = logit_j * (1 / f32(T)) for j in [0, vocab_size), or -inf where token j takes no part
// (masked or filtered out). Returns false where the row is an error: a logit that is NaN or
// infinite, a z > 2^30, or nothing that takes part.
//
// Filters, in this order, each on what the one before left; "descending" is by z, ties by lower id:
//   min-p  keeps j with z_j - z_max >= log(min_p), in f32 (log/1); off at min_p <= 0
//   top-k  keeps the first top_k, descending; off at top_k <= 0
//   top-p  keeps j, descending, while S(before j) < f64(top_p) * S(row), in f64; off at top_p >= 1.
//          S is the f64 sum of section 5 over the bins of the row's highest bin B
// At temperature 0 no filter applies. The operator layer has checked that min_p is in [0, 1] and
// top_p in (0, 1].
bool prepare_row(Workspace& workspace, const numerics::Strided<float>& logits,
                 std::int64_t vocab_size, const SamplingParams& params, float* z);

}  // namespace rlk::reference
