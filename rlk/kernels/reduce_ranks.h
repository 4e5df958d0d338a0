// Sums over the ranks of a job in the contract's order.
#pragma once

#include "rlk/device/collectives.h"
#include "rlk/kernels/kernel_table.h"

namespace rlk {

// sum[i] = the neighbour tree of sum[i] of all ranks, in order of rank; the same bytes on every
// rank. A rank owns a whole subtree of the leaves (docs/contract.md, section 2), so their number is
// a power of two. Add (+0) where the sum is complete.
//   sum  in-out  f32 [n], where the kernels' tensors lie
// Scratch: n f32 for each rank. Errors  those of Communicator.
void reduce_ranks(const KernelTable& kernels, Exec& exec, const device::Communicator& ranks,
                  float* sum, std::int64_t n);

}  // namespace rlk
