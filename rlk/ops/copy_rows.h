// copy_rows; meaning and shapes stand at the argument struct.
#pragma once

#include "rlk/kernels/copy_rows.h"
#include "rlk/ops/context.h"

namespace rlk {

// Errors  kShape, kDtype; kInvalidArgument for a row outside x or y, before any write; kNonFinite,
//         bounded: a number that is not below 2^56, with its i.
void copy_rows(Context& ctx, const CopyRowsArgs& args);

}  // namespace rlk
