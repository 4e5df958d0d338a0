// swiglu and its gradient; formulas and shapes stand at the argument structs.
#pragma once

#include "rlk/kernels/swiglu.h"
#include "rlk/ops/context.h"

namespace rlk {

// Errors  kShape, kDtype, before any write.
void swiglu(Context& ctx, const SwigluArgs& args);
void swiglu_backward(Context& ctx, const SwigluBackwardArgs& args);

}  // namespace rlk
