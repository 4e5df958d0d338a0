// Where a run happened: everything about the machine and the build that can change bits, choices
// of algorithm or speed. It is stored with each run and printed by `rlk env`.
#pragma once

#include <string>

namespace rlk {

// A JSON object, keys sorted, indented by 2 spaces:
//   build       version, git, compiler, build_type, flags, sanitize
//   cpu         model, logical_cpus, allowed_cpus (of this process), flags (those that kernels or
//               libraries choose by: fma, avx2, avx512*, amx*, ...)
//   os          name, kernel, machine, libc
//   libraries   version of each library that is loaded in this process, of those that can change
//               results (openblas with the core it chose and its threads, onednn) or files (sqlite)
//   variables   environment variables that are set and change bits or the choice of algorithm;
//               core/doctor.h judges them
//   num_threads as given
// Fields that cannot be read are null. It names neither the host nor the user.
std::string environment_json(int num_threads);

// The flags that decide about floating point, and the rest of the compiler's.
const char* build_flags();

// SHA-256 of the running program's file: the truest name of a build.
std::string program_digest();

// The CPU model and those of its features by which kernels choose their code.
std::string device_name();

}  // namespace rlk
