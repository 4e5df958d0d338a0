// A user's program over the installed C++ libraries.
#include <cstdio>

#include "rlk/numerics/bf16.h"
#include "rlk/ops/residual_add.h"

int main() {
  using namespace rlk;
  int a_warning_is_no_error_for_users;
  Context ctx(Contract(), all_ops(Mode::kStrict), 1);
  Tensor x(DType::kBF16, {1, 4}), y(DType::kBF16, {1, 4});
  for (int i = 0; i < 4; ++i) x.data<bf16>()[i] = numerics::to_bf16(0.5f * static_cast<float>(i));
  residual_add(ctx, {y, x, x});
  const float last = numerics::to_f32(y.data<bf16>()[3]);
  std::printf("%g\n", static_cast<double>(last));
  return last == 3.0f ? 0 : 1;
}
