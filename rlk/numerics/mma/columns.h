// The models of matrix instructions (hopper.h, cdna3.h, cdna2.h) for whole tiles of a product, with
// vectors: the bits of the scalar model for every input. For replaying a profile on a CPU.
#pragma once

#include <vector>

#include "rlk/contract/contract.h"
#include "rlk/numerics/mma/columns_isa.h"

namespace rlk::numerics::mma {

// What this CPU can run for a profile other than portable, the fastest first. The last is the
// scalar model.
const std::vector<const ColumnsIsa*>& columns_isas(Profile profile);

}  // namespace rlk::numerics::mma
