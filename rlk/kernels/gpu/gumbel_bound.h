// Bounds of gumbel/1 that take no logarithm: which tokens cannot win a draw.
#pragma once

#include <bit>
#include <cstdint>

#include "rlk/numerics/math.h"

namespace rlk::gpu {

// At least numerics::gumbel_of_word of any word.
inline constexpr float kMaxGumbel = 16.64f;

// At least numerics::gumbel_of_word(word), mostly by less than 0.1. With d below 1 - u:
// -log(-log(u)) < -log(1 - u) < -log(d), and log2(d) lies above the straight lines between its
// values at powers of two, which are the bits of d read as a number. (Its rounding, and those of
// gumbel/1, are less than what is added; a test goes through all words.)
RLK_HD inline float gumbel_bound(std::uint32_t word) {
  const float rising = std::bit_cast<float>(word >> 9 | 0x3f800000u);  // 1 + k * 2^-23
  const float d = (2.0f - 0x1p-23f) - rising;                          // exact: 1 - u - 2^-24
  const auto bits = static_cast<float>(std::bit_cast<std::int32_t>(d));
  return numerics::fma(bits, -0x1.62e43p-24f, 88.0298f);  // 127 ln 2 = 88.02969
}

}  // namespace rlk::gpu
