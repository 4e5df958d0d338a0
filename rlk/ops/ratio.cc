#include "rlk/ops/ratio.h"

#include "rlk/ops/dispatch.h"

namespace rlk {

void ratio(Context& ctx, const RatioArgs& a) {
  constexpr Op op = Op::ratio;
  const std::int64_t tokens = a.logp.shape(0);
  check_strided(ctx, op, "ratio", a.ratio, DType::kF32, {tokens});
  check_strided(ctx, op, "logp", a.logp, DType::kF32, {tokens});
  check_strided(ctx, op, "old", a.old, DType::kF32, {tokens});
  if (a.weight) check_strided(ctx, op, "weight", a.weight, DType::kF32, {tokens});
  dispatch(ctx, op, &KernelTable::ratio, a, a.ratio, "the token's ratio is not finite");
}

}  // namespace rlk
