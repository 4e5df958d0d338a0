// Stands in for the kernels of profile sm90 where the build has none: a table without kernels, and
// no raw instruction for any device.
#include "rlk/kernels/gpu/gpu_kernels.h"
#include "rlk/kernels/raw_instructions.h"

namespace rlk {

const KernelTable& gpu_kernels_sm90() {
  static constexpr KernelTable kTable = {.backend = gpu::kBackendSm90};
  return kTable;
}

std::span<const RawInstruction> raw_instructions(const device::Info&) { return {}; }

}  // namespace rlk
