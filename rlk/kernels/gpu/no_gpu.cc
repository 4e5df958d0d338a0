// Stands in for the kernels of profile portable, and for the way to a GPU, where the build has
// none.
#include "rlk/kernels/gpu/gpu_kernels.h"

namespace rlk {

const KernelTable& gpu::portable_kernels() { return kPortableBackend; }

const KernelTable& on_host_memory(const KernelTable& kernels) { return kernels; }

}  // namespace rlk
