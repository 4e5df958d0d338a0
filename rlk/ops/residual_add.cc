#include "rlk/ops/residual_add.h"

#include "rlk/ops/dispatch.h"

namespace rlk {

void residual_add(Context& ctx, const ResidualAddArgs& a) {
  constexpr Op op = Op::residual_add;
  const DType storage = check_storage(ctx, op, "a", a.a);
  check_strided(ctx, op, "a", a.a, storage, {kAnySize, kAnySize});
  check_strided(ctx, op, "b", a.b, storage, {a.a.shape(0), a.a.shape(1)});
  check_strided(ctx, op, "y", a.y, storage, {a.a.shape(0), a.a.shape(1)});
  dispatch(ctx, op, &KernelTable::residual_add, a, a.y, "");
}

}  // namespace rlk
