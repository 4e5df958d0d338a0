#include "rlk/ops/residual_add.h"

#include "rlk/ops/dispatch.h"

namespace rlk {

void residual_add(Context& ctx, const ResidualAddArgs& a) {
  constexpr Op op = Op::residual_add;
  check_tensor(ctx, op, "a", a.a, DType::kBF16, {kAnySize, kAnySize});
  check_tensor(ctx, op, "b", a.b, DType::kBF16, {a.a.shape(0), a.a.shape(1)});
  check_tensor(ctx, op, "y", a.y, DType::kBF16, {a.a.shape(0), a.a.shape(1)});
  dispatch(ctx, op, &KernelTable::residual_add, a, a.y, "");
}

}  // namespace rlk
