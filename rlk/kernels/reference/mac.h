// The multiply-accumulate primitive of matrix products, where the reference writes a product loop
// itself. (Whole chains and leaf trees are numerics/sums.h.)
#pragma once

#include <cmath>

namespace rlk::reference {

// Profile `portable`: one fma. a and b hold bf16 values.
inline float mac(float a, float b, float acc) { return std::fma(a, b, acc); }

}  // namespace rlk::reference
