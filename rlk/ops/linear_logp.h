// linear_logp and its gradient; formulas and shapes stand at the argument structs.
#pragma once

#include "rlk/kernels/linear_logp.h"
#include "rlk/ops/context.h"

namespace rlk {

// Errors  kShape, kDtype; kInvalidArgument for a target outside the vocabulary or parameters out of
//         range, before any write; kNonFinite for a row that has no log-probability.
void linear_logp(Context& ctx, const LinearLogpArgs& args);
void linear_logp_backward(Context& ctx, const LinearLogpBackwardArgs& args);

}  // namespace rlk
