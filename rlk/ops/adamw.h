// adamw and grad_norm; formulas and shapes stand at the argument structs.
#pragma once

#include "rlk/kernels/adamw.h"
#include "rlk/ops/context.h"

namespace rlk {

// Errors  kShape, kDtype before any write.
void adamw(Context& ctx, const AdamwArgs& args);

// Errors  kDtype; kNonFinite where an element is NaN or infinite.
void grad_norm(Context& ctx, const GradNormArgs& args);

}  // namespace rlk
