#include "rlk/kernels/grpo_loss.h"

#include <algorithm>
#include <cmath>

#include "rlk/kernels/reference/loss_terms.h"
#include "rlk/kernels/reference/table.h"

namespace rlk::reference {

void grpo_loss(Exec& exec, const GrpoLossArgs& args) {
  for (std::int64_t t = 0; t < args.g.shape(0); ++t) {
    if (!is_active(args.weight, t)) {
      for (const TensorView& out : {args.g, args.pg_loss, args.kl, args.ratio}) {
        store(out, t, 0.0f);
      }
      continue;
    }
    const float weight = *args.weight.at<float>(t);
    const float logp = *args.logp.at<float>(t);
    const float a = *args.advantage.at<float>(t);
    const float r = ratio_of(logp, *args.old.at<float>(t));
    const bool clipped = (a > 0.0f && r > args.hi) || (a < 0.0f && r < args.lo);
    const float pg = clipped ? 0.0f : -(a * r);
    const float ref = args.kl_type == Kl::kNone ? logp : *args.ref.at<float>(t);
    const KlTerm kl = kl_term(args.kl_type, logp, ref);
    const float g = std::fma(args.beta, kl.slope, pg) * weight;
    const float clamped = std::min(std::max(r, args.lo), args.hi);
    if (!numerics::is_finite(g)) exec.fault.report(t);
    store(args.g, t, g);
    store(args.pg_loss, t, -std::min(r * a, clamped * a));
    store(args.kl, t, kl.value);
    store(args.ratio, t, r);
  }
}

}  // namespace rlk::reference
