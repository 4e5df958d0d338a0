#include "rlk/ops/kl.h"

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

void kl(Context& ctx, const KlArgs& a) {
  constexpr Op op = Op::kl;
  const std::int64_t tokens = a.logp.shape(0);
  check_strided(ctx, op, "kl", a.kl, DType::kF32, {tokens});
  check_strided(ctx, op, "logp", a.logp, DType::kF32, {tokens});
  check_strided(ctx, op, "ref", a.ref, DType::kF32, {tokens});
  if (a.slope) check_strided(ctx, op, "slope", a.slope, DType::kF32, {tokens});
  if (a.weight) check_strided(ctx, op, "weight", a.weight, DType::kF32, {tokens});
  if (a.kl_type == Kl::kNone) {
    fail(ErrorCode::kInvalidArgument, "{}: kl_type is none, expected k1, k2 or k3", ctx.where(op));
  }
  dispatch(ctx, op, &KernelTable::kl, a, a.kl, "the token's value is not finite");
}

}  // namespace rlk
