// Stands in for the kernels of profile sm90 where the build has none.
#include "rlk/kernels/gpu/gpu_kernels.h"

namespace rlk {

const KernelTable& gpu_kernels_sm90() {
  static constexpr KernelTable kTable = {.backend = gpu::kBackendSm90};
  return kTable;
}

}  // namespace rlk
