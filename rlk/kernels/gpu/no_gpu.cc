// Stands in for the GPU backend where the build has none: a table without kernels.
#include "rlk/kernels/gpu/gpu_kernels.h"

namespace rlk {

const KernelTable& gpu_kernels() {
  static constexpr KernelTable kTable = {.backend = gpu::kBackend};
  return kTable;
}

const KernelTable& gpu_kernels_on_host_memory() { return gpu_kernels(); }

const KernelTable& gpu_kernels_sm90_on_host_memory() { return gpu_kernels_sm90(); }
const KernelTable& gpu_kernels_cdna3_on_host_memory() { return gpu_kernels_cdna3(); }
const KernelTable& gpu_kernels_cdna2_on_host_memory() { return gpu_kernels_cdna2(); }

}  // namespace rlk
