// The table of profile sm90: that of profile portable, but for what is made of products.
#include "rlk/kernels/gpu/sm90/table.h"

#include "rlk/kernels/gpu/call.h"

namespace rlk {

const KernelTable& gpu_kernels_sm90() {
  static const KernelTable kTable = [] {
    KernelTable table = gpu_kernels();
    table.backend = gpu::kBackendSm90;
    table.profiles = 1u << static_cast<int>(Profile::kSm90);
#define RLK_OP(name, Args) table.name = &gpu::call<&gpu::sm90::name, Args>;
    RLK_GPU_PRODUCT_OPS(RLK_OP)
#undef RLK_OP
    return table;
  }();
  return kTable;
}

}  // namespace rlk
