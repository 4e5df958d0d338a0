#include "rlk/kernels/group_advantages.h"

#include "rlk/kernels/gpu/elements.h"
#include "rlk/kernels/gpu/table.h"
#include "rlk/numerics/math.h"

namespace rlk::gpu {
namespace {

RLK_HD inline bool is_finite_f64(double x) { return x - x == 0.0; }

// A thread a group: they are few.
RLK_KERNEL(kElementThreads)
group_advantages_kernel(Ref<float> advantages, Ref<const double> rewards, std::int64_t num_groups,
                        std::int64_t n, double eps, std::int64_t ddof, unsigned long long* fault) {
  const std::int64_t group = block_x() * kElementThreads + thread();
  if (group >= num_groups) return;
  const std::int64_t begin = group * n;
  bool equal = true;
  double sum = 0.0;
  for (std::int64_t i = begin; i < begin + n; ++i) {
    equal = equal && rewards(i) == rewards(begin);
    sum = sum + rewards(i);
  }
  if (equal) {
    for (std::int64_t i = begin; i < begin + n; ++i) advantages(i) = 0.0f;
    return;
  }
  const double mean = sum / static_cast<double>(n);
  double squares = 0.0;
  for (std::int64_t i = begin; i < begin + n; ++i) {
    const double d = rewards(i) - mean;
    squares = squares + d * d;
  }
  const double std_dev = numerics::sqrt(squares / static_cast<double>(n - ddof));
  for (std::int64_t i = begin; i < begin + n; ++i) {
    const auto advantage = static_cast<float>((rewards(i) - mean) / (std_dev + eps));
    advantages(i) = advantage;
    if (!is_finite_f64(std_dev) || !numerics::is_finite(advantage)) report(fault, i);
  }
}

}  // namespace

void group_advantages(Exec& exec, const GroupAdvantagesArgs& args) {
  const std::int64_t num_groups = ceil_div(args.rewards.shape(0), args.group_size);
  launch(exec, {ceil_div(num_groups, kElementThreads)}, kElementThreads, 0, group_advantages_kernel,
         ref<float>(args.advantages), ref<double>(args.rewards), num_groups, args.group_size,
         args.eps, args.ddof, exec.gpu->fault());
}

}  // namespace rlk::gpu
