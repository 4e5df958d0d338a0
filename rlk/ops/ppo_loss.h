// ppo_loss; formulas and shapes stand at the argument struct.
#pragma once

#include "rlk/kernels/ppo_loss.h"
#include "rlk/ops/context.h"
#include "rlk/ops/kl.h"

namespace rlk {

// Errors  kShape, kDtype, and kInvalidArgument for a value_clip below 0, before any write;
//         kNonFinite where a gradient of a token is not finite.
void ppo_loss(Context& ctx, const PpoLossArgs& args);

}  // namespace rlk
