#include "rlk/ops/grpo_loss.h"

#include "rlk/ops/dispatch.h"

namespace rlk {
namespace {
constexpr const char* kKlNames[] = {"none", "k1", "k2", "k3"};
}

const char* to_string(Kl kl) { return kKlNames[static_cast<int>(kl)]; }

Kl parse_kl(std::string_view name) {
  for (int i = 0; i < 4; ++i) {
    if (name == kKlNames[i]) return static_cast<Kl>(i);
  }
  fail(ErrorCode::kInvalidArgument, "kl \"{}\": must be none, k1, k2 or k3", name);
}

void grpo_loss(Context& ctx, const GrpoLossArgs& a) {
  constexpr Op op = Op::grpo_loss;
  const std::int64_t tokens = a.logp.shape(0);
  check_tensor(ctx, op, "g", a.g, DType::kF32, {tokens});
  check_tensor(ctx, op, "logp", a.logp, DType::kF32, {tokens});
  check_tensor(ctx, op, "old", a.old, DType::kF32, {tokens});
  check_tensor(ctx, op, "advantage", a.advantage, DType::kF32, {tokens});
  check_tensor(ctx, op, "weight", a.weight, DType::kF32, {tokens});
  if (a.kl_type != Kl::kNone) check_tensor(ctx, op, "ref", a.ref, DType::kF32, {tokens});
  if (a.pg_loss) check_tensor(ctx, op, "pg_loss", a.pg_loss, DType::kF32, {tokens});
  if (a.kl) check_tensor(ctx, op, "kl", a.kl, DType::kF32, {tokens});
  if (a.ratio) check_tensor(ctx, op, "ratio", a.ratio, DType::kF32, {tokens});
  dispatch(ctx, op, &KernelTable::grpo_loss, a, a.g, "the token's gradient is not finite");
}

}  // namespace rlk
