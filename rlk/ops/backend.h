// Backends by name: the kernels that an engine can run on, and that conformance can try.
#pragma once

#include <string_view>
#include <vector>

#include "rlk/kernels/kernel_table.h"

namespace rlk {

// "cpu": the best of this CPU; "cuda", "hip": those of `profile` on the GPU of this thread; or one
// by its own name ("cpu.avx2", "cuda.sm90", "reference", "production").
// Errors  kInvalidArgument: an unknown name, with all there are; kNotAvailable: this build or
//         machine lacks it, and why.
const KernelTable& find_backend(std::string_view name, Profile profile = Profile::kPortable);

// The profile of the matrix units of this thread's GPU, where this build has kernels for them;
// else, and without a GPU, portable.
Profile matrix_profile();

// What this machine has that gives the bits of `profile`: the reference, cpu.scalar and what the
// CPU supports of the others, production, and that of the GPU of this thread.
std::vector<const KernelTable*> all_backends(Profile profile = Profile::kPortable);

}  // namespace rlk
