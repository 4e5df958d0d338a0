#include "rlk/ops/swiglu.h"

#include "rlk/ops/dispatch.h"

namespace rlk {

void swiglu(Context& ctx, const SwigluArgs& a) {
  constexpr Op op = Op::swiglu;
  const DType storage = check_storage(ctx, op, "g", a.g);
  check_strided(ctx, op, "g", a.g, storage, {kAnySize, kAnySize});
  check_strided(ctx, op, "u", a.u, storage, {a.g.shape(0), a.g.shape(1)});
  check_strided(ctx, op, "y", a.y, storage, {a.g.shape(0), a.g.shape(1)});
  dispatch(ctx, op, &KernelTable::swiglu, a, a.y, "");
}

void swiglu_backward(Context& ctx, const SwigluBackwardArgs& a) {
  constexpr Op op = Op::swiglu_backward;
  const std::int64_t rows = a.g.shape(0), n = a.g.shape(1);
  const DType storage = check_storage(ctx, op, "g", a.g);
  check_strided(ctx, op, "g", a.g, storage, {rows, n});
  check_strided(ctx, op, "u", a.u, storage, {rows, n});
  check_strided(ctx, op, "dy", a.dy, storage, {rows, n});
  check_strided(ctx, op, "dg", a.dg, storage, {rows, n});
  check_strided(ctx, op, "du", a.du, storage, {rows, n});
  dispatch(ctx, op, &KernelTable::swiglu_backward, a, a.dy, "");
}

}  // namespace rlk
