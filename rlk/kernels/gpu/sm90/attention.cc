#include "rlk/kernels/gpu/sm90/attention.h"

#include "rlk/kernels/gpu/sm90/table.h"

namespace rlk::gpu::sm90 {

void attention(Exec& exec, const AttentionArgs& args) {
  if (attention_prefill(exec, args) || attention_decode(exec, args)) return;
  attention_any(exec, args);
}

}  // namespace rlk::gpu::sm90
