// The kernels that an engine can run on, by name.
#pragma once

#include <string_view>

#include "rlk/kernels/kernel_table.h"

namespace rlk {

// "cpu": the best of this CPU; "cuda", "hip": those of `profile` on the first GPU; or one by its
// own name ("cpu.avx2", "cuda.sm90", "reference"). Errors  kInvalidArgument: an unknown name;
// kNotAvailable: this build or machine lacks it.
const KernelTable& engine_kernels(std::string_view name, Profile profile);

}  // namespace rlk
