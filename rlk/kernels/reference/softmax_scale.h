// The two constants of attention (contract section 4).
#pragma once

#include <cmath>
#include <cstdint>

namespace rlk::reference {

// The f32 nearest to log2(e) / sqrt(d) and to 1 / sqrt(d). Rounding twice, through f64, gives the
// nearest f32 for every d up to 2048.
inline float log2e_over_sqrt(std::int64_t d) {
  return static_cast<float>(0x1.71547652b82fep+0 / std::sqrt(static_cast<double>(d)));
}
inline float one_over_sqrt(std::int64_t d) {
  return static_cast<float>(1.0 / std::sqrt(static_cast<double>(d)));
}

}  // namespace rlk::reference
