// rope and its gradient; formulas and shapes stand at the argument struct.
#pragma once

#include "rlk/kernels/rope.h"
#include "rlk/ops/context.h"

namespace rlk {

// Errors  kShape, kDtype; kInvalidArgument for a position outside the table, before any write;
//         kNonFinite where a rotated value reaches 2^56.
void rope(Context& ctx, const RopeArgs& args);
void rope_backward(Context& ctx, const RopeArgs& args);

}  // namespace rlk
