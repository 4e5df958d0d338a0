#include "rlk/kernels/grpo_loss.h"

#include "rlk/kernels/cpu/rows.h"
#include "rlk/kernels/cpu/rows_isa.h"
#include "rlk/kernels/cpu/table.h"
#include "rlk/kernels/reference/table.h"

namespace rlk::cpu {

template <Isa I>
void grpo_loss(Exec& exec, const GrpoLossArgs& args) {
  if (!dense(0, args.g, args.pg_loss, args.kl, args.ratio, args.logp, args.old, args.ref,
             args.advantage, args.weight)) {
    return reference::grpo_loss(exec, args);
  }
  const RowsIsa& isa = rows_isa(I);
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
  exec.pool.parallel_for(args.g.shape(0), grain(4.0) / 16 * 16,
                         [&](std::int64_t begin, std::int64_t end, int) {
                           const std::int64_t bad = isa.grpo_loss(rows, begin, end);
                           if (bad >= 0) exec.fault.report(bad);
                         });
}

RLK_INSTANTIATE(grpo_loss, GrpoLossArgs);

}  // namespace rlk::cpu
