// The vector model of a profile's matrix instruction that goes with an instruction set.
#pragma once

#include "rlk/kernels/kernel_table.h"
#include "rlk/numerics/mma/columns_isa.h"

namespace rlk::cpu {

// Null for profile portable, whose mac is the CPU's own fma.
const numerics::mma::ColumnsIsa* columns_isa(Isa isa, Profile profile);

}  // namespace rlk::cpu
