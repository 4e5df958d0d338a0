// Stands in for the kernels of profiles cdna2 and cdna3 where the build has none.
#include "rlk/kernels/gpu/gpu_kernels.h"

namespace rlk {

const KernelTable& gpu_kernels_cdna3() {
  static constexpr KernelTable kTable = {.backend = gpu::kBackendCdna3};
  return kTable;
}

const KernelTable& gpu_kernels_cdna2() {
  static constexpr KernelTable kTable = {.backend = gpu::kBackendCdna2};
  return kTable;
}

}  // namespace rlk
