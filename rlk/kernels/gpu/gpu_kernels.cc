// The table of profile portable.
#include "rlk/kernels/gpu/gpu_kernels.h"

#include "rlk/kernels/gpu/call.h"
#include "rlk/kernels/gpu/table.h"

namespace rlk::gpu {

const KernelTable& portable_kernels() {
  static const KernelTable kTable = [] {
    KernelTable table = kPortableBackend;
    table.on_device = true;
#define RLK_OP(name, Args) table.name = &call<&gpu::name, Args>;
    RLK_GPU_OPS(RLK_OP)
#undef RLK_OP
    return table;
  }();
  return kTable;
}

}  // namespace rlk::gpu
