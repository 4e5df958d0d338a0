#include "rlk/rl/advantage.h"

namespace rlk {

void group_advantages(Context& ctx, std::span<float> advantages, std::span<const double> rewards,
                      std::int64_t group_size, double eps, int ddof) {
  GroupAdvantagesArgs args;
  args.advantages = view(advantages.data(), {std::ssize(advantages)});
  args.rewards = view(rewards.data(), {std::ssize(rewards)});
  args.group_size = group_size;
  args.eps = eps;
  args.ddof = ddof;
  group_advantages(ctx, args);
}

}  // namespace rlk
