#include "rlk/ops/adamw.h"

#include "rlk/ops/dispatch.h"

namespace rlk {

void adamw(Context& ctx, const AdamwArgs& a) {
  constexpr Op op = Op::adamw;
  const std::int64_t n = a.master.shape(0);
  check_strided(ctx, op, "w", a.w, DType::kBF16, {n});
  check_strided(ctx, op, "master", a.master, DType::kF32, {n});
  check_strided(ctx, op, "m", a.m, DType::kF32, {n});
  check_strided(ctx, op, "v", a.v, DType::kF32, {n});
  check_strided(ctx, op, "dw", a.dw, DType::kF32, {n});
  dispatch(ctx, op, &KernelTable::adamw, a, a.master, "");
}

void grad_norm(Context& ctx, const GradNormArgs& a) {
  constexpr Op op = Op::grad_norm;
  if (!a.norm) fail(ErrorCode::kInvalidArgument, "{}: norm is absent", ctx.where(op));
  ConstTensorView total;
  total.layout = Layout({0});
  for (std::int64_t i = 0; i < a.num_grads; ++i) {
    const ConstTensorView& g = a.grads[i];
    if (g.dtype != DType::kF32 || !g.layout.contiguous()) {
      fail(ErrorCode::kDtype, "{}: gradient {} is {} {}, expected F32 without gaps", ctx.where(op),
           i, to_string(g.dtype), g.layout.to_string());
    }
    if (!g && g.layout.size() > 0) {
      fail(ErrorCode::kInvalidArgument, "{}: gradient {} is absent", ctx.where(op), i);
    }
    total.layout.shape[0] += g.layout.size();
  }
  dispatch(ctx, op, &KernelTable::grad_norm, a, total, "a gradient is not finite");
}

}  // namespace rlk
