// Attention of any shape on mma.sync, and which kernels compute its gradients.
#include "rlk/kernels/gpu/attention_any.h"

#include "rlk/kernels/gpu/attention_backward_any.h"
#include "rlk/kernels/gpu/attention_d_sum.h"
#include "rlk/kernels/gpu/sm90/attention.h"
#include "rlk/kernels/gpu/sm90/square.h"
#include "rlk/kernels/gpu/sm90/table.h"

namespace rlk::gpu::sm90 {

void attention_any(Exec& exec, const AttentionArgs& args) {
  any_shape::attention<Square>(exec, args);
}

void attention_backward(Exec& exec, const AttentionBackwardArgs& args) {
  if (attention_backward_tiles(exec, args)) return;
  device::Workspace::Frame frame(exec.gpu->workspace());
  float* const d_sum = frame.take<float>(args.q.shape(0) * args.q.shape(1));
  attention_d_sum<bf16>(exec, args, d_sum);
  any_shape::attention_backward<Square>(exec, args, d_sum);
}

}  // namespace rlk::gpu::sm90
