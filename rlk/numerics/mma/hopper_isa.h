// The function of hopper_columns.h that is compiled once per instruction set. Plain data and raw
// pointers only: no inline function of baseline code may be compiled with instruction set flags.
#pragma once

#include <cstdint>

namespace rlk::numerics::mma {

inline constexpr int kHopperWidth = 16;

// An exponent as the vectors add them: biased by 127, subnormals 1. Two marks stand so far outside
// that they still show in a sum of two.
inline constexpr int kZeroExponent = -8000;
inline constexpr int kSpecialExponent = 16000;  // NaN and infinity

// An element of A: its value, and its exponent in both halves of 32 bits.
struct HopperA {
  float value;
  std::uint32_t exponents;
};

// The scalar model of one group; b has `stride_b` between its elements.
using HopperGroup = float (*)(float c, const HopperA* a, const std::uint16_t* b,
                              std::int64_t stride_b);

struct HopperIsa {
  const char* name;
  int panel;  // columns of a panel of B, two vectors

  // acc [rows, panel] goes on through `groups` groups of 16 products. A is [rows, groups * 16].
  // A packed panel of B holds for each k bf16 [panel] and int16 exponents [panel], both with
  // columns j and j + panel/2 side by side in 32 bits, so that shifts and masks give two vectors.
  void (*product)(float* acc, std::int64_t acc_stride, const HopperA* a, std::int64_t a_stride,
                  const std::uint16_t* b, std::int64_t rows, std::int64_t groups,
                  HopperGroup group);
};

extern const HopperIsa kHopperAvx2;
extern const HopperIsa kHopperAvx512;

}  // namespace rlk::numerics::mma
