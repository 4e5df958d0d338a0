// residual_add; formula and shapes stand at the argument struct.
#pragma once

#include "rlk/kernels/residual_add.h"
#include "rlk/ops/context.h"

namespace rlk {

// Errors  kShape, kDtype, before any write.
void residual_add(Context& ctx, const ResidualAddArgs& args);

}  // namespace rlk
