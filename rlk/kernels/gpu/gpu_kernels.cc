// The table of the GPU backend.
#include "rlk/kernels/gpu/call.h"
#include "rlk/kernels/gpu/table.h"

namespace rlk {
const KernelTable& gpu_kernels() {
  static const KernelTable kTable = [] {
    KernelTable table;
    table.backend = gpu::kBackend;
    table.on_device = true;
#define RLK_OP(name, Args) table.name = &gpu::call<&gpu::name, Args>;
    RLK_GPU_OPS(RLK_OP)
#undef RLK_OP
    return table;
  }();
  return kTable;
}

}  // namespace rlk
