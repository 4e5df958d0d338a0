// The kernels of the GPU backend, profile `portable`. Tensors lie in device memory; arrays that are
// no tensors (SamplingParams, SampleKey, the list of gradients) on the host.
#pragma once

#include "rlk/kernels/gpu/gpu_kernels.h"

namespace rlk::gpu {

#define RLK_OP(name, Args) void name(Exec& exec, const Args& args);
RLK_GPU_OPS(RLK_OP)
#undef RLK_OP

}  // namespace rlk::gpu
