// Products of few rows by the vendor's library, where it was seen to give our bytes.
#pragma once

#include "rlk/kernels/exec.h"
#include "rlk/kernels/gemm.h"

namespace rlk::gpu::sm90 {

// Whether a plan of the library (rlk/kernels/vendor_plans.h) is chosen for the call; then it runs.
bool vendor_gemm(Exec& exec, const GemmArgs& args);

}  // namespace rlk::gpu::sm90
