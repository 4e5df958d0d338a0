// ratio; formulas and shapes stand at the argument struct.
#pragma once

#include "rlk/kernels/ratio.h"
#include "rlk/ops/context.h"

namespace rlk {

// Errors  kShape, kDtype before any write; kNonFinite where a token's ratio is not finite.
void ratio(Context& ctx, const RatioArgs& args);

}  // namespace rlk
