// rms_norm and its gradients; formulas and shapes stand at the argument structs.
#pragma once

#include "rlk/kernels/rms_norm.h"
#include "rlk/ops/context.h"

namespace rlk {

// Errors  kShape, kDtype before any write; kNonFinite where the sum of squares is not finite.
void rms_norm(Context& ctx, const RmsNormArgs& args);
void rms_norm_backward(Context& ctx, const RmsNormBackwardArgs& args);
void rms_norm_backward_weight(Context& ctx, const RmsNormBackwardWeightArgs& args);
void merge_heads(Context& ctx, const MergeHeadsArgs& args);

}  // namespace rlk
