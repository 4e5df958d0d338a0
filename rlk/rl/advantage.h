// The operator group_advantages on the rewards of a step.
#pragma once

#include <cstdint>
#include <span>

#include "rlk/ops/group_advantages.h"

namespace rlk {

// Errors  those of the operator; kShape where there is not one advantage per reward.
void group_advantages(Context& ctx, std::span<float> advantages, std::span<const double> rewards,
                      std::int64_t group_size, double eps, int ddof);

}  // namespace rlk
