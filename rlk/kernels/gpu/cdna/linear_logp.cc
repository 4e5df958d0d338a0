#include "rlk/kernels/gpu/linear_logp.h"

#include "rlk/kernels/gpu/cdna/gemm.h"
#include "rlk/kernels/gpu/cdna/table.h"

namespace rlk::gpu::cdna {
namespace {

// Every 16 tokens are whole groups of either profile.
constexpr Products kProducts{gemm, gemm_backward_weight_in_window, 16};

}  // namespace

void linear_logp(Exec& exec, const LinearLogpArgs& args) { linear_logp_of(kProducts, exec, args); }

void linear_logp_backward(Exec& exec, const LinearLogpBackwardArgs& args) {
  linear_logp_backward_of(kProducts, exec, args);
}

}  // namespace rlk::gpu::cdna
