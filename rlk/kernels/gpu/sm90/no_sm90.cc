// Stands in for the kernels of profile sm90 where the build has none.
#include "rlk/kernels/gpu/gpu_kernels.h"
#include "rlk/kernels/vendor_plans.h"

namespace rlk {

const KernelTable& gpu::sm90_kernels() { return kSm90Backend; }

const VendorPlan& try_vendor_products(Exec&, const VendorShape&, const VendorEffort&) {
  static const VendorPlan kNone{{}, "", "this build has no kernels of profile sm90", {}};
  return kNone;
}

}  // namespace rlk
