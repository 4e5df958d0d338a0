// group_advantages: the advantages of GRPO, rewards relative to the group of their prompt.
#pragma once

#include <cstdint>

#include "rlk/core/tensor.h"

namespace rlk {

// advantage = f32((R - mean) / (std + eps)),  std = sqrt(sum (R - mean)^2 / (n - ddof))
//   advantages  out  f32 [num_groups * group_size]
//   rewards     in   f64 [num_groups * group_size]; the samples of one prompt are consecutive
//   group_size       n
// Bits    f64, both sums from +0 in rising order of the samples; one rounding to f32, at the end. A
//         group whose rewards are all equal gets +0.
// Errors  row: the sample's advantage is not finite (rewards near the ends of f64, or std + eps =
// 0). Source  Shao et al. 2024 (DeepSeekMath).
struct GroupAdvantagesArgs {
  TensorView advantages;
  ConstTensorView rewards;
  std::int64_t group_size = 0;
  double eps = 1e-6;
  std::int64_t ddof = 1;
};

}  // namespace rlk
