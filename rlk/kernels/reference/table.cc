#include "rlk/kernels/reference/table.h"

namespace rlk {

const KernelTable& reference_kernels() {
  static constexpr KernelTable kTable = {.backend = "reference",
                                         .profiles = kEveryProfile,  // models of numerics/mma
#define RLK_OP(name, Args) .name = &reference::name,
                                         RLK_OPS(RLK_OP)
#undef RLK_OP
  };
  return kTable;
}

}  // namespace rlk
