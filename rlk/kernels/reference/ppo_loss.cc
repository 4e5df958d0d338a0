#include "rlk/kernels/ppo_loss.h"

#include <algorithm>

#include "rlk/kernels/reference/loss_terms.h"
#include "rlk/kernels/reference/table.h"

namespace rlk::reference {

void ppo_loss(Exec& exec, const PpoLossArgs& args) {
  grpo_loss(exec, args.policy);
  for (std::int64_t t = 0; t < args.g_value.shape(0); ++t) {
    if (!is_active(args.policy.weight, t)) {
      for (const TensorView& out : {args.g_value, args.v_loss, args.g_entropy}) {
        store(out, t, 0.0f);
      }
      continue;
    }
    const float weight = *args.policy.weight.at<float>(t);
    const float v = *args.value.at<float>(t);
    const float old = *args.old_value.at<float>(t);
    const float target = *args.returns.at<float>(t);
    const float clipped = std::min(std::max(v, old - args.value_clip), old + args.value_clip);
    const float d = v - target;
    const float c = clipped - target;
    const bool held = c * c > d * d;
    const float g = (args.value_coef * (held ? 0.0f : d)) * weight;
    if (!numerics::is_finite(g)) exec.fault.report(t);
    store(args.g_value, t, g);
    store(args.v_loss, t, 0.5f * (held ? c * c : d * d));
    store(args.g_entropy, t, -(args.entropy_coef * weight));
  }
}

}  // namespace rlk::reference
