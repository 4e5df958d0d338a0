// The instruction sets of this CPU that vector kernels are compiled for. True where the operating
// system saves their registers too.
#pragma once

namespace rlk {

bool has_avx2();    // and FMA
bool has_avx512();  // F, BW, DQ and VL, and what has_avx2 asks for

}  // namespace rlk
