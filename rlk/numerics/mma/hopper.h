// The BF16 matrix instructions of NVIDIA Hopper with f32 accumulator: mma.sync m16n8k16 and
// wgmma m64nNk16, which give the same bits. One output element of one instruction:
//
//   E = max(floor, exponent of every product that is not zero, exponent of c if it is not zero)
//   S = sum of all products and c, each cut toward zero to F fraction bits below 2^E: exact
//   result = S * 2^(E - F), rounded toward zero to f32
//
// Subnormal operands and results are kept, |result| >= 2^128 is infinity, a zero is +0. NaN is
// 0x7FFFFFFF, the bits of the chip; where the contract stores a NaN it is canonical as everywhere.
// Inside a group the sum has no order. docs/matrix_models.md says what was measured.
#pragma once

#include <bit>
#include <cstdint>

#include "rlk/numerics/mma/terms.h"

namespace rlk::numerics::mma {

struct FusedModel {
  int group;           // products that one sum takes
  int fraction_bits;   // F
  int floor_exponent;  // the least E
};

inline constexpr FusedModel kHopper{16, 25, -133};
inline constexpr std::uint32_t kHopperNan = 0x7fffffffu;

// One instruction: c + sum of a[i] * b[i], i in [0, model.group).
// Exact: with F <= 46 - 2 a cut term is below 2^(F+2), and 33 of them stay far below 2^63.
inline float fused_group(const FusedModel& model, float c, const bf16* a, const bf16* b) {
  NonFinite non_finite;
  non_finite.add(c);
  for (int i = 0; i < model.group; ++i) non_finite.add(a[i], b[i], false);
  if (non_finite.any()) return non_finite.result(std::bit_cast<float>(kHopperNan));

  int exponent = model.floor_exponent;
  const auto align = [&](const Term& t) {
    if (t.magnitude != 0 && t.exponent > exponent) exponent = t.exponent;
  };
  align(to_term(c));
  for (int i = 0; i < model.group; ++i) align(product(a[i], b[i]));

  const int unit = exponent - model.fraction_bits;
  std::int64_t sum = cut(to_term(c), unit);
  for (int i = 0; i < model.group; ++i) sum += cut(product(a[i], b[i]), unit);
  return round_to_f32(sum, unit, Rounding::kTowardZero);
}

inline float hopper_group(float c, const bf16* a, const bf16* b) {
  return fused_group(kHopper, c, a, b);
}

}  // namespace rlk::numerics::mma
