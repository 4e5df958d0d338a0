// Stands in for the production route in programs for GPU machines, which lack its libraries. Its
// operators are there in other tables; asking for one is an error that says so.
#include "rlk/kernels/kernel_table.h"

namespace rlk {

const KernelTable& production_kernels() {
  static constexpr KernelTable kTable = {.backend = "production"};
  return kTable;
}

}  // namespace rlk
