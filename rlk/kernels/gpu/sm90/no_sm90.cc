// Stands in for the kernels of profile sm90 where the build has none.
#include "rlk/kernels/gpu/gpu_kernels.h"

namespace rlk::gpu {

const KernelTable& sm90_kernels() { return kSm90Backend; }

}  // namespace rlk::gpu
