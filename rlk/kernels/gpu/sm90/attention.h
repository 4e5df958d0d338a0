// Attention of profile sm90: kernels that give the same bits, each for the shapes it is good at.
#pragma once

#include "rlk/kernels/attention.h"
#include "rlk/kernels/exec.h"

namespace rlk::gpu::sm90 {

// Many queries a sequence, head_dim 64 or 128, blocks of 128 keys, 16 lanes. False: not this shape,
// or the copy engine cannot read it; nothing was done.
bool attention_prefill(Exec& exec, const AttentionArgs& args);
// Few queries a sequence, all splits at the same time; head_dim 64 or 128, blocks of 128 keys, 16
// lanes. False as above.
bool attention_decode(Exec& exec, const AttentionArgs& args);
// Any shape, strides and pages.
void attention_any(Exec& exec, const AttentionArgs& args);

// The gradients where head_dim is 64 or 128 and the copy engine can read the tensors. False as
// above.
bool attention_backward_tiles(Exec& exec, const AttentionBackwardArgs& args);

}  // namespace rlk::gpu::sm90
