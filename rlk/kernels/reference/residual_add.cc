#include "rlk/kernels/residual_add.h"

#include "rlk/kernels/reference/storage.h"
#include "rlk/kernels/reference/table.h"

namespace rlk::reference {

void residual_add(Exec&, const ResidualAddArgs& args) {
  for (std::int64_t t = 0; t < args.y.shape(0); ++t) {
    for (std::int64_t k = 0; k < args.y.shape(1); ++k) {
      write(args.y, read(args.a, t, k) + read(args.b, t, k), t, k);
    }
  }
}

}  // namespace rlk::reference
