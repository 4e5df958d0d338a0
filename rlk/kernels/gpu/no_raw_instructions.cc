// Stands in where the build has no raw instruction for any device.
#include "rlk/kernels/raw_instructions.h"

namespace rlk {

std::span<const RawInstruction> raw_instructions(const device::Info&) { return {}; }

}  // namespace rlk
