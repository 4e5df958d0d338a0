// Group advantages of GRPO.
#pragma once

#include <cstdint>
#include <span>

namespace rlk {

// advantage = f32((R - mean) / (std + eps)),  std = sqrt(sum (R - mean)^2 / (n - ddof))
//   advantages  out  f32 [num_groups * group_size]
//   rewards     in   f64 [num_groups * group_size]; the samples of one prompt are consecutive
//   group_size  n > ddof
// Bits    f64, both sums from +0 in rising order of the samples; one rounding to f32, at the end. A
//         group whose rewards are all equal gets +0.
// Errors  kShape for sizes that do not fit; kInvalidArgument for ddof not 0 or 1, ddof >= n, or an
//         eps that is negative or not finite; kNonFinite for a reward, or an advantage beyond f32.
// Source  Shao et al. 2024 (DeepSeekMath).
void group_advantages(std::span<float> advantages, std::span<const double> rewards,
                      std::int64_t group_size, double eps, int ddof);

}  // namespace rlk
