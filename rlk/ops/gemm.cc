#include "rlk/ops/gemm.h"

#include <algorithm>

#include "rlk/ops/dispatch.h"

namespace rlk {
void gemm(Context& ctx, const GemmArgs& a) {
  constexpr Op op = Op::gemm;
  const std::int64_t m = a.a.shape(0), k = a.a.shape(1), n = a.b.shape(0);
  const DType storage = check_mac_storage(ctx, op, "a", a.a);
  check_strided(ctx, op, "a", a.a, storage, {m, k});
  check_strided(ctx, op, "b", a.b, storage, {n, k});
  if (a.c.dtype != storage && a.c.dtype != DType::kF32) {
    fail(ErrorCode::kDtype, "{}: c is {}, expected {} or F32", ctx.where(op), to_string(a.c.dtype),
         to_string(storage));
  }
  check_strided(ctx, op, "c", a.c, a.c.dtype, {m, n});
  if (a.bias) check_strided(ctx, op, "bias", a.bias, storage, {n});
  const auto [least, most] = std::minmax_element(a.segments.begin(), a.segments.end());
  if (*least < 0 || *most > k || a.segments[0] + a.segments[1] + a.segments[2] != k) {
    fail(ErrorCode::kShape, "{}: segments {} + {} + {} do not make K = {}", ctx.where(op),
         a.segments[0], a.segments[1], a.segments[2], k);
  }
  if (a.packed_b && a.packed_b->owner && (a.packed_b->n != n || a.packed_b->k != k)) {
    fail(ErrorCode::kShape, "{}: packed weight is [{}, {}], expected [{}, {}]", ctx.where(op),
         a.packed_b->n, a.packed_b->k, n, k);
  }
  if (a.packed_b && a.packed_b->owner && a.packed_b->dtype != storage) {
    fail(ErrorCode::kDtype, "{}: packed weight is {}, expected {}", ctx.where(op),
         to_string(a.packed_b->dtype), to_string(storage));
  }
  ConstTensorView shape = a.c;
  shape.layout.rank = 3;
  shape.layout.shape[2] = k;
  dispatch(ctx, op, &KernelTable::gemm, a, shape, "");
}

void gemm_backward_weight(Context& ctx, const GemmBackwardWeightArgs& a) {
  constexpr Op op = Op::gemm_backward_weight;
  const std::int64_t tokens = a.dy.shape(0), n = a.dy.shape(1), k = a.x.shape(1);
  const DType storage = check_mac_storage(ctx, op, "dy", a.dy);
  check_strided(ctx, op, "dy", a.dy, storage, {tokens, n});
  check_strided(ctx, op, "x", a.x, storage, {tokens, k});
  check_tensor(ctx, op, "dw", a.dw, DType::kF32, {n, k});
  check_tensor(ctx, op, "chain", a.chain, DType::kF32, {n, k});
  check_tensor(ctx, op, "group_ends", a.group_ends, DType::kI64, {kAnySize});
  std::int64_t last = 0;
  for (std::int64_t i = 0; i < a.group_ends.shape(0); ++i) {
    const std::int64_t end = *a.group_ends.at<std::int64_t>(i);
    if (end < last || end > tokens) {
      fail(ErrorCode::kInvalidArgument,
           "{}: group_ends[{}] = {}, expected at least {} and at most {}", ctx.where(op), i, end,
           last, tokens);
    }
    last = end;
  }
  check_samples(ctx, op, a.cu_seqlens, tokens);
  ConstTensorView shape = a.dy;
  shape.layout.rank = 3;
  shape.layout.shape[2] = k;
  dispatch(ctx, op, &KernelTable::gemm_backward_weight, a, shape, "");
}

void bias_backward(Context& ctx, const BiasBackwardArgs& a) {
  constexpr Op op = Op::bias_backward;
  check_strided(ctx, op, "dy", a.dy, check_storage(ctx, op, "dy", a.dy), {kAnySize, kAnySize});
  check_tensor(ctx, op, "dbias", a.dbias, DType::kF32, {a.dy.shape(1)});
  check_tensor(ctx, op, "cu_seqlens", a.cu_seqlens, DType::kI32, {kAnySize});
  check_cu_seqlens(ctx, op, a.cu_seqlens, a.dy.shape(0));
  dispatch(ctx, op, &KernelTable::bias_backward, a, a.dy, "");
}

void pack_weight(Context& ctx, const PackWeightArgs& a) {
  constexpr Op op = Op::pack_weight;
  check_strided(ctx, op, "w", a.w, check_mac_storage(ctx, op, "w", a.w), {kAnySize, kAnySize});
  // Whatever gemm runs here has to understand the layout.
  const KernelTable& table = ctx.table(Op::gemm);
  if (!table.pack_weight) fail_missing(ctx, op);
  table.pack_weight(ctx.exec(), a);
}

}  // namespace rlk
