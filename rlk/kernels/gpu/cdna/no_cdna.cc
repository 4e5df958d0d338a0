// Stands in for the kernels of profiles cdna2 and cdna3 where the build has none.
#include "rlk/kernels/gpu/gpu_kernels.h"

namespace rlk::gpu {

const KernelTable& cdna3_kernels() { return kCdna3Backend; }
const KernelTable& cdna2_kernels() { return kCdna2Backend; }

}  // namespace rlk::gpu
