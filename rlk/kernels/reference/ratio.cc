#include "rlk/kernels/ratio.h"

#include "rlk/kernels/reference/loss_terms.h"
#include "rlk/kernels/reference/table.h"

namespace rlk::reference {

void ratio(Exec& exec, const RatioArgs& args) {
  for (std::int64_t t = 0; t < args.ratio.shape(0); ++t) {
    float r = 0.0f;
    if (is_active(args.weight, t)) r = ratio_of(*args.logp.at<float>(t), *args.old.at<float>(t));
    if (!numerics::is_finite(r)) exec.fault.report(t);
    store(args.ratio, t, r);
  }
}

}  // namespace rlk::reference
