// grpo_loss; formulas and shapes stand at the argument struct.
#pragma once

#include "rlk/kernels/grpo_loss.h"
#include "rlk/ops/context.h"
#include "rlk/ops/kl.h"

namespace rlk {

// Errors  kShape, kDtype before any write; kNonFinite where a token's gradient is not finite.
void grpo_loss(Context& ctx, const GrpoLossArgs& args);

}  // namespace rlk
