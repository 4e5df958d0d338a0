#include "rlk/ops/swiglu.h"

#include "rlk/ops/dispatch.h"

namespace rlk {

void swiglu(Context& ctx, const SwigluArgs& a) {
  constexpr Op op = Op::swiglu;
  check_tensor(ctx, op, "g", a.g, DType::kBF16, {kAnySize, kAnySize});
  check_tensor(ctx, op, "u", a.u, DType::kBF16, {a.g.shape(0), a.g.shape(1)});
  check_tensor(ctx, op, "y", a.y, DType::kBF16, {a.g.shape(0), a.g.shape(1)});
  dispatch(ctx, op, &KernelTable::swiglu, a, a.y, "");
}

void swiglu_backward(Context& ctx, const SwigluBackwardArgs& a) {
  constexpr Op op = Op::swiglu_backward;
  const std::int64_t rows = a.g.shape(0), n = a.g.shape(1);
  check_tensor(ctx, op, "g", a.g, DType::kBF16, {rows, n});
  check_tensor(ctx, op, "u", a.u, DType::kBF16, {rows, n});
  check_tensor(ctx, op, "dy", a.dy, DType::kBF16, {rows, n});
  check_tensor(ctx, op, "dg", a.dg, DType::kBF16, {rows, n});
  check_tensor(ctx, op, "du", a.du, DType::kBF16, {rows, n});
  dispatch(ctx, op, &KernelTable::swiglu_backward, a, a.dy, "");
}

}  // namespace rlk
