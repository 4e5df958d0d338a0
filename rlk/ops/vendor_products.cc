#include "rlk/ops/vendor_products.h"

#include "rlk/core/error.h"
#include "rlk/device/vendor_products.h"

namespace rlk {

std::vector<VendorPlan> use_vendor_products(Context& ctx, const std::string& library,
                                            const std::vector<VendorShape>& shapes) {
  std::vector<VendorPlan> plans;
  if (!ctx.on_device() || &ctx.table(Op::gemm) != &gpu_kernels(Profile::kSm90)) return plans;
  Exec& exec = ctx.exec();
  exec.gpu->products = nullptr;
  if (library.empty()) return plans;
  try {
    exec.gpu->products = &device::product_library(library);
  } catch (const Error& e) {
    for (const VendorShape& shape : shapes) plans.push_back({shape, library, e.what(), {}});
    return plans;
  }
  for (const VendorShape& shape : shapes) plans.push_back(try_vendor_products(exec, shape));
  return plans;
}

}  // namespace rlk
