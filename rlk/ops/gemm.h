// gemm, its weight and bias gradients, and packing; formulas and shapes stand at the structs.
#pragma once

#include "rlk/kernels/gemm.h"
#include "rlk/ops/context.h"

namespace rlk {

// Errors  kShape, kDtype, before any write.
void gemm(Context& ctx, const GemmArgs& args);
void gemm_backward_weight(Context& ctx, const GemmBackwardWeightArgs& args);
void bias_backward(Context& ctx, const BiasBackwardArgs& args);

// Packs for the kernels that this context's gemm runs. Pack again whenever the weight changes.
void pack_weight(Context& ctx, const PackWeightArgs& args);

}  // namespace rlk
