// The operators of profile sm90 that are not those of profile portable: the ones made of products.
#pragma once

#include "rlk/kernels/gpu/gpu_kernels.h"

namespace rlk::gpu::sm90 {

#define RLK_OP(name, Args) void name(Exec& exec, const Args& args);
RLK_GPU_PRODUCT_OPS(RLK_OP)
#undef RLK_OP

}  // namespace rlk::gpu::sm90
