// Products of any shape on mma.sync.
#include "rlk/kernels/gpu/gemm_any.h"

#include "rlk/kernels/gpu/sm90/gemm.h"
#include "rlk/kernels/gpu/sm90/square.h"

namespace rlk::gpu::sm90 {

void gemm_any(Exec& exec, const GemmArgs& args) { any_shape::gemm<Square>(exec, args); }

void gemm_backward_weight_any(Exec& exec, const GemmBackwardWeightArgs& args,
                              const TokenWindow& window) {
  any_shape::gemm_backward_weight<Square>(exec, args, window);
}

}  // namespace rlk::gpu::sm90
