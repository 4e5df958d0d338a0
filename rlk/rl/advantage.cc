#include "rlk/rl/advantage.h"

#include <algorithm>
#include <utility>

namespace rlk {

void group_advantages(Context& ctx, std::span<float> advantages, std::span<const double> rewards,
                      std::int64_t group_size, double eps, int ddof) {
  const std::int64_t n = std::ssize(rewards);
  Workspace::Frame frame(ctx.small_workspace());
  GroupAdvantagesArgs args;
  args.advantages = view(frame.take<float>(std::ssize(advantages)), {std::ssize(advantages)});
  double* const in = frame.take<double>(n);
  std::copy(rewards.begin(), rewards.end(), in);
  args.rewards = view(std::as_const(in), {n});
  args.group_size = group_size;
  args.eps = eps;
  args.ddof = ddof;
  group_advantages(ctx, args);
  ctx.synchronize();
  std::copy_n(args.advantages.at<float>(), n, advantages.begin());
}

}  // namespace rlk
