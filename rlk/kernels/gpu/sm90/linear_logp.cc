#include "rlk/kernels/gpu/linear_logp.h"

#include "rlk/kernels/gpu/sm90/gemm.h"
#include "rlk/kernels/gpu/sm90/linear_logp_tiles.h"
#include "rlk/kernels/gpu/sm90/table.h"

namespace rlk::gpu::sm90 {
namespace {

constexpr Products kProducts{gemm, gemm_backward_weight_in_window, 16};

}  // namespace

void linear_logp(Exec& exec, const LinearLogpArgs& args) {
  if (linear_logp_has_tiles(exec, args)) return linear_logp_tiles(exec, args);
  linear_logp_of(kProducts, exec, args);
}

void linear_logp_backward(Exec& exec, const LinearLogpBackwardArgs& args) {
  if (linear_logp_backward_has_tiles(exec, args)) return linear_logp_backward_tiles(exec, args);
  linear_logp_backward_of(kProducts, exec, args);
}

}  // namespace rlk::gpu::sm90
