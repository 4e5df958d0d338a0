#include "rlk/ops/rms_norm.h"

#include "rlk/ops/dispatch.h"

namespace rlk {

void rms_norm(Context& ctx, const RmsNormArgs& a) {
  constexpr Op op = Op::rms_norm;
  const std::int64_t tokens = a.x.shape(0), heads = a.x.shape(1), n = a.x.shape(2);
  const DType storage = check_storage(ctx, op, "x", a.x);
  check_strided(ctx, op, "x", a.x, storage, {tokens, heads, n});
  check_strided(ctx, op, "y", a.y, storage, {tokens, heads, n});
  check_strided(ctx, op, "w", a.w, storage, {n});
  if (a.q) check_strided(ctx, op, "q", a.q, DType::kF32, {tokens, heads});
  if (a.residual || a.residual_out) {
    check_strided(ctx, op, "residual", a.residual, storage, {tokens, heads, n});
    check_strided(ctx, op, "residual_out", a.residual_out, storage, {tokens, heads, n});
  }
  dispatch(ctx, op, &KernelTable::rms_norm, a, a.x,
           "the sum of squares is not finite (row = token * heads + head)");
}

void rms_norm_backward(Context& ctx, const RmsNormBackwardArgs& a) {
  constexpr Op op = Op::rms_norm_backward;
  const std::int64_t tokens = a.x.shape(0), heads = a.x.shape(1), n = a.x.shape(2);
  const DType storage = check_storage(ctx, op, "x", a.x);
  check_strided(ctx, op, "x", a.x, storage, {tokens, heads, n});
  check_strided(ctx, op, "dy", a.dy, storage, {tokens, heads, n});
  check_strided(ctx, op, "dx", a.dx, storage, {tokens, heads, n});
  check_strided(ctx, op, "w", a.w, storage, {n});
  check_strided(ctx, op, "q", a.q, DType::kF32, {tokens, heads});
  dispatch(ctx, op, &KernelTable::rms_norm_backward, a, a.x, "");
}

void rms_norm_backward_weight(Context& ctx, const RmsNormBackwardWeightArgs& a) {
  constexpr Op op = Op::rms_norm_backward_weight;
  const std::int64_t tokens = a.x.shape(0), heads = a.x.shape(1), n = a.x.shape(2);
  const DType storage = check_storage(ctx, op, "x", a.x);
  check_strided(ctx, op, "x", a.x, storage, {tokens, heads, n});
  check_strided(ctx, op, "dy", a.dy, storage, {tokens, heads, n});
  check_strided(ctx, op, "dw", a.dw, DType::kF32, {heads, n});
  check_strided(ctx, op, "q", a.q, DType::kF32, {tokens, heads});
  check_strided(ctx, op, "cu_seqlens", a.cu_seqlens, DType::kI32, {kAnySize});
  check_cu_seqlens(ctx, op, a.cu_seqlens, tokens);
  dispatch(ctx, op, &KernelTable::rms_norm_backward_weight, a, a.x, "");
}

void merge_heads(Context& ctx, const MergeHeadsArgs& a) {
  constexpr Op op = Op::merge_heads;
  check_strided(ctx, op, "partial", a.partial, DType::kF32, {kAnySize, kAnySize});
  check_strided(ctx, op, "dw", a.dw, DType::kF32, {a.partial.shape(1)});
  dispatch(ctx, op, &KernelTable::merge_heads, a, a.partial, "");
}

}  // namespace rlk
