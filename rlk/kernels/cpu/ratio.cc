#include "rlk/kernels/ratio.h"

#include "rlk/kernels/cpu/rows.h"
#include "rlk/kernels/cpu/table.h"
#include "rlk/kernels/reference/table.h"

namespace rlk::cpu {

template <Isa I>
void ratio(Exec& exec, const RatioArgs& args) {
  if (!dense(0, args.ratio, args.logp, args.old, args.weight)) {
    return reference::ratio(exec, args);
  }
  const RatioRows rows = {
      .ratio = args.ratio.at<float>(),
      .logp = args.logp.at<float>(),
      .old = args.old.at<float>(),
      .weight = args.weight.at<float>(),
  };
  for_each_token(exec, args.ratio.shape(0), rows, rows_isa(I).ratio);
}

RLK_INSTANTIATE(ratio, RatioArgs);

}  // namespace rlk::cpu
