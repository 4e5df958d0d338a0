#include "rlk/kernels/group_advantages.h"

#include "rlk/kernels/cpu/table.h"
#include "rlk/kernels/reference/table.h"

namespace rlk::cpu {

// A few sums of f64 in a fixed order per step: the reference is as fast as it gets.
template <Isa I>
void group_advantages(Exec& exec, const GroupAdvantagesArgs& args) {
  reference::group_advantages(exec, args);
}

RLK_INSTANTIATE(group_advantages, GroupAdvantagesArgs);

}  // namespace rlk::cpu
