// The table of profile sm90: that of profile portable, but for what is made of products.
#include "rlk/kernels/gpu/sm90/table.h"

#include "rlk/kernels/gpu/call.h"

namespace rlk::gpu {

const KernelTable& sm90_kernels() {
  static const KernelTable kTable = [] {
    KernelTable table = with_kernels_of(portable_kernels(), kSm90Backend);
#define RLK_OP(name, Args) table.name = &call<&sm90::name, Args>;
    RLK_GPU_PRODUCT_OPS(RLK_OP)
#undef RLK_OP
    return table;
  }();
  return kTable;
}

}  // namespace rlk::gpu
