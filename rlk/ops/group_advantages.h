// group_advantages; formulas and shapes stand at the argument struct.
#pragma once

#include "rlk/kernels/group_advantages.h"
#include "rlk/ops/context.h"

namespace rlk {

// Errors  before any write: kShape for sizes that do not fit, kDtype; kInvalidArgument for ddof not
// 0
//         or 1, ddof >= group_size, or an eps that is negative or not finite; kNonFinite for a
//         reward. After it: kNonFinite for an advantage beyond f32.
void group_advantages(Context& ctx, const GroupAdvantagesArgs& args);

}  // namespace rlk
