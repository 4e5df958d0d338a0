// The kernels that the production backend has of its own. Its other entries are the CPU backend's:
// see table.cc.
#pragma once

#include "rlk/kernels/kernel_table.h"

namespace rlk::production {

#define RLK_OP(name, Args) void name(Exec& exec, const Args& args);
RLK_OPS(RLK_OP)
#undef RLK_OP

}  // namespace rlk::production
