#include "rlk/ops/group_advantages.h"

#include <cmath>

#include "rlk/ops/dispatch.h"

namespace rlk {

void group_advantages(Context& ctx, const GroupAdvantagesArgs& a) {
  constexpr Op op = Op::group_advantages;
  const std::int64_t count = a.rewards.shape(0);
  check_strided(ctx, op, "rewards", a.rewards, DType::kF64, {count});
  check_strided(ctx, op, "advantages", a.advantages, DType::kF32, {count});
  if (a.group_size <= 0 || count % a.group_size != 0) {
    fail(ErrorCode::kShape, "{}: {} rewards cannot be cut into groups of {}", ctx.where(op), count,
         a.group_size);
  }
  if (a.ddof < 0 || a.ddof > 1 || a.ddof >= a.group_size) {
    fail(ErrorCode::kInvalidArgument, "{}: ddof is {}, expected 0 or 1 and below {}", ctx.where(op),
         a.ddof, a.group_size);
  }
  if (!(a.eps >= 0) || !std::isfinite(a.eps)) {
    fail(ErrorCode::kInvalidArgument, "{}: eps is {}, expected a finite number from 0",
         ctx.where(op), a.eps);
  }
  for (std::int64_t i = 0; i < count; ++i) {
    const double reward = *a.rewards.at<double>(i);
    if (!std::isfinite(reward)) {
      fail(ErrorCode::kNonFinite, "{}: reward {} of group {}, sample {}", ctx.where(op), reward,
           i / a.group_size, i % a.group_size);
    }
  }
  dispatch(ctx, op, &KernelTable::group_advantages, a, a.advantages,
           "the sample's advantage is not finite");
}

}  // namespace rlk
