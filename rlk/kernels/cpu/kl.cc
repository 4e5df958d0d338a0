#include "rlk/kernels/kl.h"

#include "rlk/kernels/cpu/rows.h"
#include "rlk/kernels/cpu/table.h"
#include "rlk/kernels/reference/table.h"

namespace rlk::cpu {

template <Isa I>
void kl(Exec& exec, const KlArgs& args) {
  if (!dense(0, args.kl, args.slope, args.logp, args.ref, args.weight)) {
    return reference::kl(exec, args);
  }
  const KlRows rows = {
      .kl = args.kl.at<float>(),
      .slope = args.slope.at<float>(),
      .logp = args.logp.at<float>(),
      .ref = args.ref.at<float>(),
      .weight = args.weight.at<float>(),
      .kl_type = static_cast<int>(args.kl_type),
  };
  for_each_token(exec, args.kl.shape(0), rows, rows_isa(I).kl);
}

RLK_INSTANTIATE(kl, KlArgs);

}  // namespace rlk::cpu
