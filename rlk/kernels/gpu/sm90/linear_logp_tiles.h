// linear_logp out of the registers of its products: no logit is ever stored. For rows without
// filters.
//
//   forward   tiles of logits add up, row by row, to the integer sums of the log-sum-exp, a block
//             for some columns of its rows; those of all blocks are merged. What a row comes to is
//             the state for backward
//   backward  the vocabulary leaf by leaf: a tile of logits becomes dlogits, which are stored for
//             one leaf; from these the leaf of d_hidden, and dW of its rows
#pragma once

#include "rlk/kernels/exec.h"
#include "rlk/kernels/linear_logp.h"

namespace rlk::gpu::sm90 {

// Whether it can be done so: shapes and alignments that the copy engine takes, and no filters.
bool linear_logp_has_tiles(const Exec& exec, const LinearLogpArgs& args);
bool linear_logp_backward_has_tiles(const Exec& exec, const LinearLogpBackwardArgs& args);

void linear_logp_tiles(Exec& exec, const LinearLogpArgs& args);
void linear_logp_backward_tiles(Exec& exec, const LinearLogpBackwardArgs& args);

}  // namespace rlk::gpu::sm90
