// The list of the GPU backends: one per profile.
#include "rlk/kernels/gpu/gpu_kernels.h"

namespace rlk {

const KernelTable& gpu_kernels(Profile profile) {
  switch (profile) {
    case Profile::kPortable: return gpu::portable_kernels();
    case Profile::kSm90: return gpu::sm90_kernels();
    case Profile::kCdna3: return gpu::cdna3_kernels();
    case Profile::kCdna2: return gpu::cdna2_kernels();
  }
  return gpu::portable_kernels();
}

}  // namespace rlk
