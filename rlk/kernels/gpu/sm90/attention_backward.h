// The gradients of attention in profile sm90: kernels for the shapes they are good at.
#pragma once

#include "rlk/kernels/attention.h"
#include "rlk/kernels/exec.h"

namespace rlk::gpu::sm90 {

// The gradients where head_dim is 64 or 128 and the copy engine can read the tensors. False: they
// do not fit; nothing was done.
bool attention_gradients(Exec& exec, const AttentionBackwardArgs& args);

}  // namespace rlk::gpu::sm90
