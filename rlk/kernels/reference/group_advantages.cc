#include "rlk/kernels/group_advantages.h"

#include <cmath>

#include "rlk/kernels/reference/table.h"

namespace rlk::reference {
namespace {

// Samples [begin, begin + n).
void one_group(Exec& exec, const GroupAdvantagesArgs& args, std::int64_t begin, std::int64_t n) {
  const auto reward = [&](std::int64_t i) { return *args.rewards.at<double>(begin + i); };
  const auto out = [&](std::int64_t i) { return args.advantages.at<float>(begin + i); };
  bool equal = true;
  double sum = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    equal = equal && reward(i) == reward(0);
    sum = sum + reward(i);
  }
  if (equal) {
    for (std::int64_t i = 0; i < n; ++i) *out(i) = 0.0f;
    return;
  }
  const double mean = sum / static_cast<double>(n);
  double squares = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    const double d = reward(i) - mean;
    squares = squares + d * d;
  }
  const double std_dev = std::sqrt(squares / static_cast<double>(n - args.ddof));
  for (std::int64_t i = 0; i < n; ++i) {
    *out(i) = static_cast<float>((reward(i) - mean) / (std_dev + args.eps));
    // Squares may overflow for rewards near the end of f64, or vanish (std + eps = 0) near 0.
    if (!std::isfinite(std_dev) || !std::isfinite(*out(i))) exec.fault.report(begin + i);
  }
}

}  // namespace

void group_advantages(Exec& exec, const GroupAdvantagesArgs& args) {
  for (std::int64_t begin = 0; begin < args.rewards.shape(0); begin += args.group_size) {
    one_group(exec, args, begin, args.group_size);
  }
}

}  // namespace rlk::reference
