// The kernels of the reference backend: the contract executed literally, one scalar at a time, on
// one thread. They define the right bits of every other backend, in every profile.
#pragma once

#include "rlk/kernels/kernel_table.h"

namespace rlk::reference {

#define RLK_OP(name, Args) void name(Exec& exec, const Args& args);
RLK_OPS(RLK_OP)
#undef RLK_OP

}  // namespace rlk::reference
