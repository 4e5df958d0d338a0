// The operators of profile sm90 that are not those of profile portable: the ones made of products.
#pragma once

#include "rlk/kernels/kernel_table.h"

// As RLK_OPS.
#define RLK_GPU_SM90_OPS(X)                       \
  X(pack_weight, PackWeightArgs)                  \
  X(gemm, GemmArgs)                               \
  X(gemm_backward_weight, GemmBackwardWeightArgs) \
  X(attention, AttentionArgs)                     \
  X(attention_backward, AttentionBackwardArgs)    \
  X(linear_logp, LinearLogpArgs)                  \
  X(linear_logp_backward, LinearLogpBackwardArgs)

namespace rlk::gpu::sm90 {

#define RLK_OP(name, Args) void name(Exec& exec, const Args& args);
RLK_GPU_SM90_OPS(RLK_OP)
#undef RLK_OP

}  // namespace rlk::gpu::sm90
