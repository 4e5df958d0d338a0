#include "rlk/ops/grpo_loss.h"

#include "rlk/ops/dispatch.h"
#include "rlk/ops/ppo_loss.h"

namespace rlk {
namespace {

void check_policy(const Context& ctx, Op op, const GrpoLossArgs& a) {
  const std::int64_t tokens = a.logp.shape(0);
  check_strided(ctx, op, "g", a.g, DType::kF32, {tokens});
  check_strided(ctx, op, "logp", a.logp, DType::kF32, {tokens});
  check_strided(ctx, op, "old", a.old, DType::kF32, {tokens});
  check_strided(ctx, op, "advantage", a.advantage, DType::kF32, {tokens});
  check_strided(ctx, op, "weight", a.weight, DType::kF32, {tokens});
  if (a.kl_type != Kl::kNone) check_strided(ctx, op, "ref", a.ref, DType::kF32, {tokens});
  if (a.pg_loss) check_strided(ctx, op, "pg_loss", a.pg_loss, DType::kF32, {tokens});
  if (a.kl) check_strided(ctx, op, "kl", a.kl, DType::kF32, {tokens});
  if (a.ratio) check_strided(ctx, op, "ratio", a.ratio, DType::kF32, {tokens});
}

}  // namespace

void grpo_loss(Context& ctx, const GrpoLossArgs& a) {
  constexpr Op op = Op::grpo_loss;
  check_policy(ctx, op, a);
  dispatch(ctx, op, &KernelTable::grpo_loss, a, a.g, "the token's gradient is not finite");
}

void ppo_loss(Context& ctx, const PpoLossArgs& a) {
  constexpr Op op = Op::ppo_loss;
  check_policy(ctx, op, a.policy);
  const std::int64_t tokens = a.policy.logp.shape(0);
  check_strided(ctx, op, "g_value", a.g_value, DType::kF32, {tokens});
  check_strided(ctx, op, "value", a.value, DType::kF32, {tokens});
  check_strided(ctx, op, "old_value", a.old_value, DType::kF32, {tokens});
  check_strided(ctx, op, "returns", a.returns, DType::kF32, {tokens});
  if (a.v_loss) check_strided(ctx, op, "v_loss", a.v_loss, DType::kF32, {tokens});
  if (a.g_entropy) check_strided(ctx, op, "g_entropy", a.g_entropy, DType::kF32, {tokens});
  if (!(a.value_clip >= 0)) {
    fail(ErrorCode::kInvalidArgument, "{}: value_clip is {}, expected 0 or more", ctx.where(op),
         a.value_clip);
  }
  dispatch(ctx, op, &KernelTable::ppo_loss, a, a.policy.g, "the token's gradient is not finite");
}

}  // namespace rlk
