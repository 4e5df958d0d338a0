// Weight gradients from a part of a call's tokens at a time.
#pragma once

#include <cstdint>

#include "rlk/kernels/exec.h"
#include "rlk/kernels/gemm.h"

namespace rlk::gpu {

// A part of a call: dy and x hold its tokens from `begin` on, and what begins in [begin, end) is
// taken: groups of mac, which may reach a little beyond, and the group ends behind them.
struct TokenWindow {
  std::int64_t begin;
  std::int64_t end;
  std::int64_t num_tokens;  // of the call
};

// gemm_backward_weight on a part of a call.
void gemm_backward_weight_in_window(Exec& exec, const GemmBackwardWeightArgs& args,
                                    const TokenWindow& window);

}  // namespace rlk::gpu
