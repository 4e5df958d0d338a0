// grpo_loss; formulas and shapes stand at the argument struct.
#pragma once

#include <string_view>

#include "rlk/kernels/grpo_loss.h"
#include "rlk/ops/context.h"

namespace rlk {

// Errors  kShape, kDtype before any write; kNonFinite where a token's gradient is not finite.
void grpo_loss(Context& ctx, const GrpoLossArgs& args);

const char* to_string(Kl kl);
Kl parse_kl(std::string_view name);  // none, k1, k2, k3

}  // namespace rlk
