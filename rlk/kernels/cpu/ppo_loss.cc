#include "rlk/kernels/ppo_loss.h"

#include "rlk/kernels/cpu/rows.h"
#include "rlk/kernels/cpu/table.h"
#include "rlk/kernels/reference/table.h"

namespace rlk::cpu {

template <Isa I>
void ppo_loss(Exec& exec, const PpoLossArgs& args) {
  if (!dense(0, args.g_value, args.v_loss, args.g_entropy, args.value, args.old_value, args.returns,
             args.policy.weight)) {
    return reference::ppo_loss(exec, args);
  }
  grpo_loss<I>(exec, args.policy);
  const ValueLossRows rows = {
      .g_value = args.g_value.at<float>(),
      .v_loss = args.v_loss.at<float>(),
      .g_entropy = args.g_entropy.at<float>(),
      .value = args.value.at<float>(),
      .old_value = args.old_value.at<float>(),
      .returns = args.returns.at<float>(),
      .weight = args.policy.weight.at<float>(),
      .clip = args.value_clip,
      .value_coef = args.value_coef,
      .entropy_coef = args.entropy_coef,
  };
  for_each_token(exec, args.g_value.shape(0), rows, rows_isa(I).value_loss);
}

RLK_INSTANTIATE(ppo_loss, PpoLossArgs);

}  // namespace rlk::cpu
