#include "rlk/kernels/grpo_loss.h"

#include "rlk/kernels/cpu/rows.h"
#include "rlk/kernels/cpu/table.h"
#include "rlk/kernels/reference/table.h"

namespace rlk::cpu {

template <Isa I>
void grpo_loss(Exec& exec, const GrpoLossArgs& args) {
  if (!dense(0, args.g, args.pg_loss, args.kl, args.ratio, args.logp, args.old, args.ref,
             args.advantage, args.weight)) {
    return reference::grpo_loss(exec, args);
  }
  static_assert(static_cast<int>(Kl::kNone) == 0 && static_cast<int>(Kl::kK3) == 3);
  const GrpoLossRows rows = {
      .g = args.g.at<float>(),
      .pg_loss = args.pg_loss.at<float>(),
      .kl = args.kl.at<float>(),
      .ratio = args.ratio.at<float>(),
      .logp = args.logp.at<float>(),
      .old = args.old.at<float>(),
      .ref = args.ref.at<float>(),
      .advantage = args.advantage.at<float>(),
      .weight = args.weight.at<float>(),
      .lo = args.lo,
      .hi = args.hi,
      .beta = args.beta,
      .kl_type = static_cast<int>(args.kl_type),
  };
  for_each_token(exec, args.g.shape(0), rows, rows_isa(I).grpo_loss);
}

RLK_INSTANTIATE(grpo_loss, GrpoLossArgs);

}  // namespace rlk::cpu
