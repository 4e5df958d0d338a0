#include "rlk/kernels/cpu/rows_isa.h"
#include "rlk/kernels/kernel_table.h"

namespace rlk::cpu {

const RowsIsa& rows_isa(Isa isa) {
  switch (isa) {
    case Isa::kAvx2: return kRowsAvx2;
    case Isa::kAvx512: return kRowsAvx512;
    default: return kRowsScalar;
  }
}

}  // namespace rlk::cpu
