// The CPU implementation of every operator, for one instruction set.
#pragma once

#include "rlk/kernels/kernel_table.h"

namespace rlk::cpu {

// Defined in the driver file of the operator's group, which is compiled for the baseline CPU and
// calls a table of functions compiled for instruction set I.
#define RLK_OP(name, Args) \
  template <Isa I>         \
  void name(Exec& exec, const Args& args);
RLK_OPS(RLK_OP)
#undef RLK_OP

}  // namespace rlk::cpu

// At the end of a driver file: the operator for each instruction set.
#define RLK_INSTANTIATE(name, Args)                     \
  template void name<Isa::kScalar>(Exec&, const Args&); \
  template void name<Isa::kAvx2>(Exec&, const Args&);   \
  template void name<Isa::kAvx512>(Exec&, const Args&)
