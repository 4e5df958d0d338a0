// Products of any shape on mfma_16x16x16.
#include "rlk/kernels/gpu/gemm_any.h"

#include "rlk/kernels/gpu/cdna/gemm.h"
#include "rlk/kernels/gpu/cdna/square.h"

namespace rlk::gpu::cdna {

void gemm_any(Exec& exec, const GemmArgs& args) { any_shape::gemm<Square>(exec, args); }

void gemm_backward_weight_any(Exec& exec, const GemmBackwardWeightArgs& args,
                              const TokenWindow& window) {
  any_shape::gemm_backward_weight<Square>(exec, args, window);
}

}  // namespace rlk::gpu::cdna
