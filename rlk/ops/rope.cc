#include "rlk/ops/rope.h"

#include "rlk/ops/dispatch.h"

namespace rlk {
namespace {

void check(const Context& ctx, Op op, const RopeArgs& a) {
  const std::int64_t tokens = a.x.shape(0), heads = a.x.shape(1), d = a.x.shape(2);
  const DType storage = check_storage(ctx, op, "x", a.x);
  check_strided(ctx, op, "x", a.x, storage, {tokens, heads, d});
  check_strided(ctx, op, "y", a.y, storage, {tokens, heads, d});
  if (d % 2 != 0) {
    fail(ErrorCode::kShape, "{}: head_dim {} is odd; pairs need an even one", ctx.where(op), d);
  }
  check_strided(ctx, op, "cos", a.cos, DType::kF32, {kAnySize, d / 2});
  check_strided(ctx, op, "sin", a.sin, DType::kF32, {a.cos.shape(0), d / 2});
  check_strided(ctx, op, "positions", a.positions, DType::kI32, {tokens});
  for (std::int64_t t = 0; t < tokens; ++t) {
    const std::int32_t position = *a.positions.at<std::int32_t>(t);
    if (position < 0 || position >= a.cos.shape(0)) {
      fail(ErrorCode::kInvalidArgument, "{}: token {} stands at position {}, the table ends at {}",
           ctx.where(op), t, position, a.cos.shape(0));
    }
  }
}

}  // namespace

void rope(Context& ctx, const RopeArgs& a) {
  check(ctx, Op::rope, a);
  dispatch(ctx, Op::rope, &KernelTable::rope, a, a.x,
           "a rotated value is not below 2^56 (row = token * heads + head)");
}

void rope_backward(Context& ctx, const RopeArgs& a) {
  check(ctx, Op::rope_backward, a);
  dispatch(ctx, Op::rope_backward, &KernelTable::rope_backward, a, a.x, "");
}

}  // namespace rlk
