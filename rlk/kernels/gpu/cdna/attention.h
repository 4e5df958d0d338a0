// Attention on the matrix units of CDNA2 and CDNA3: kernels that give the same bits, each for the
// shapes it is good at.
#pragma once

#include "rlk/core/error.h"
#include "rlk/kernels/attention.h"
#include "rlk/kernels/exec.h"

namespace rlk::gpu::cdna {

// Many queries a sequence. False: not this shape, or k and v cannot be read 16 bytes at a time;
// nothing was done.
bool attention_prefill(Exec& exec, const AttentionArgs& args);
// Few queries a sequence, all splits at the same time. False as above.
bool attention_decode(Exec& exec, const AttentionArgs& args);
// Any shape, strides and pages.
void attention_any(Exec& exec, const AttentionArgs& args);

// Refuses any storage type but BF16, which matrix instructions take.
inline void check_is_bf16(const Exec& exec, const ConstTensorView& q) {
  if (q.dtype == DType::kBF16) return;
  fail(ErrorCode::kUnsupported, "attention in profile {}: storage is {}, expected BF16",
       to_string(exec.contract.profile), to_string(q.dtype));
}

// The gradients; d_sum: D of the contract, [tokens, heads]. False: head_dim is not 64 or 128, or
// the tensors cannot be read 16 bytes at a time; nothing was done.
bool attention_backward_tiles(Exec& exec, const AttentionBackwardArgs& args, const float* d_sum);

}  // namespace rlk::gpu::cdna
