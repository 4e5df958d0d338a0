// Names of functions of the running program, from the symbol table of its file.
#pragma once

#include <string>

namespace rlk::emulation {

// "gemm_kernel<...>(...)", or the offset in the program where it has no name.
std::string function_name(const void* code);
// For addr2line: "name_of_program+0x1234".
std::string code_address(const void* code);

}  // namespace rlk::emulation
