// Products of the GPU vendor's library in place of ours, for the calls of one context.
#pragma once

#include <string>
#include <vector>

#include "rlk/kernels/vendor_plans.h"
#include "rlk/ops/context.h"

namespace rlk {

// From here on gemm of `ctx` gives products of these shapes to the library (a file, or a name that
// the loader finds), where that is seen to give our bytes and is faster: to be called before calls
// are recorded. An empty name: to our kernel again. Returns what was tried, now or before in this
// process; why it was not, where the library is missing; and nothing where gemm of `ctx` is not our
// kernel of profile sm90 on a GPU.
std::vector<VendorPlan> use_vendor_products(Context& ctx, const std::string& library,
                                            const std::vector<VendorShape>& shapes);

}  // namespace rlk
