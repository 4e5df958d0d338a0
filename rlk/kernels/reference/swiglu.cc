#include "rlk/kernels/swiglu.h"

#include <cmath>

#include "rlk/kernels/reference/table.h"
#include "rlk/numerics/bf16.h"
#include "rlk/numerics/math.h"

namespace rlk::reference {

using numerics::to_bf16;
using numerics::to_f32;

void swiglu(Exec&, const SwigluArgs& args) {
  for (std::int64_t t = 0; t < args.y.shape(0); ++t) {
    for (std::int64_t k = 0; k < args.y.shape(1); ++k) {
      const float g = to_f32(*args.g.at<bf16>(t, k));
      const float u = to_f32(*args.u.at<bf16>(t, k));
      *args.y.at<bf16>(t, k) = to_bf16(numerics::silu(g) * u);
    }
  }
}

void swiglu_backward(Exec&, const SwigluBackwardArgs& args) {
  for (std::int64_t t = 0; t < args.dy.shape(0); ++t) {
    for (std::int64_t k = 0; k < args.dy.shape(1); ++k) {
      const float dy = to_f32(*args.dy.at<bf16>(t, k));
      const float g = to_f32(*args.g.at<bf16>(t, k));
      const float u = to_f32(*args.u.at<bf16>(t, k));
      const float s = numerics::sigmoid(g);
      *args.du.at<bf16>(t, k) = to_bf16(dy * (g * s));
      *args.dg.at<bf16>(t, k) = to_bf16((dy * u) * (s * std::fma(g, 1.0f - s, 1.0f)));
    }
  }
}

}  // namespace rlk::reference
