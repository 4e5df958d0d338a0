// Products and sums that are two roundings each: an fma in what becomes of them is the compiler's.
// tools/isa_check looks at objects of this name.
#include "rlk/kernels/gpu/gpu.h"

namespace rlk::gpu {

RLK_KERNEL(256) two_roundings_kernel(float* x, double* y, const float* a, const double* b) {
  const int t = thread();
  float sum = 0.0f;
  for (int i = 0; i < 4; ++i) sum = sum + a[t] * a[t + i];
  x[t] = sum - a[t] * 3.0f;
  y[t] = b[t] * b[t + 1] + b[t + 2];
}

}  // namespace rlk::gpu
