// The RoPE table of the contract: correctly rounded, so it is defined by mathematics alone.
#pragma once

#include <cstdint>

namespace rlk::numerics {

// Row r holds position p = first_position + r:
//   cos[r, i], sin[r, i] = the f32 nearest to the real cos, sin of p * theta^(-2i/head_dim)
//   cos, sin  out  f32 [count, head_dim/2]
// Requires even head_dim <= 1024, positions in [0, 2^22), theta in [2, 2^40].
// Values are computed to about 2^-94 of the angle. RLK_ASSERT stops where that could not decide the
// rounding, which would need a value within 2^-72 of a midpoint between two f32 numbers (none is
// known). Only position 0 is exact. Cost: 0.25 us per (cos, sin) pair.
void rope_table(double theta, std::int64_t head_dim, std::int64_t first_position,
                std::int64_t count, float* cos, float* sin);

}  // namespace rlk::numerics
