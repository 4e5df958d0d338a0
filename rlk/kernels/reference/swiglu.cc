#include "rlk/kernels/swiglu.h"

#include <cmath>

#include "rlk/kernels/reference/storage.h"
#include "rlk/kernels/reference/table.h"
#include "rlk/numerics/math.h"

namespace rlk::reference {

void swiglu(Exec&, const SwigluArgs& args) {
  for (std::int64_t t = 0; t < args.y.shape(0); ++t) {
    for (std::int64_t k = 0; k < args.y.shape(1); ++k) {
      write(args.y, numerics::silu(read(args.g, t, k)) * read(args.u, t, k), t, k);
    }
  }
}

void swiglu_backward(Exec&, const SwigluBackwardArgs& args) {
  for (std::int64_t t = 0; t < args.dy.shape(0); ++t) {
    for (std::int64_t k = 0; k < args.dy.shape(1); ++k) {
      const float dy = read(args.dy, t, k);
      const float g = read(args.g, t, k);
      const float u = read(args.u, t, k);
      const float s = numerics::sigmoid(g);
      write(args.du, dy * (g * s), t, k);
      write(args.dg, (dy * u) * (s * std::fma(g, 1.0f - s, 1.0f)), t, k);
    }
  }
}

}  // namespace rlk::reference
