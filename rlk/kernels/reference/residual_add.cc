#include "rlk/kernels/residual_add.h"

#include "rlk/kernels/reference/table.h"
#include "rlk/numerics/bf16.h"

namespace rlk::reference {

using numerics::to_bf16;
using numerics::to_f32;

void residual_add(Exec&, const ResidualAddArgs& args) {
  for (std::int64_t t = 0; t < args.y.shape(0); ++t) {
    for (std::int64_t k = 0; k < args.y.shape(1); ++k) {
      const float a = to_f32(*args.a.at<bf16>(t, k));
      const float b = to_f32(*args.b.at<bf16>(t, k));
      *args.y.at<bf16>(t, k) = to_bf16(a + b);
    }
  }
}

}  // namespace rlk::reference
