// The BF16 matrix instructions of AMD CDNA3 (gfx942, MI300X) with f32 accumulator: 32x32x8 is one
// group of 8 products, 16x16x16 is two groups in a chain. From publications, never run here:
//
//   a product of at least 2^128 is infinity; subnormals are kept
//   e = largest exponent of a product that is not zero
//   P = sum of the products, each cut toward zero to 24 fraction bits below 2^e: exact
//   E = max(e, exponent of c); c = 0 counts as -126
//   T = floor(P, 32 fraction bits below 2^E) + floor(c, 24 fraction bits below 2^E)
//   result = f32 of floor(T, 31 fraction bits below its own leading bit), nearest even
//
// Floor is toward minus infinity, so the sum is not symmetric in the sign. NaN is 0x7FC00000 and a
// zero is +0: the publications say neither. Open points: docs/matrix_models.md.
#pragma once

#include <algorithm>
#include <cstdint>

#include "rlk/numerics/mma/terms.h"

namespace rlk::numerics::mma {

inline constexpr int kCdna3Group = 8;

// One group: c + sum of a[i] * b[i], i in [0, 8).
// Exact: 8 cut products are below 2^29 units of 2^(e-24), so below 2^37 units of 2^(E-32).
inline float cdna3_group(float c, const bf16* a, const bf16* b) {
  NonFinite non_finite;
  non_finite.add(c);
  for (int i = 0; i < kCdna3Group; ++i) non_finite.add(a[i], b[i], true);
  if (non_finite.any()) return non_finite.result(quiet_nan());

  constexpr int kNone = -1000;  // below every exponent of a product
  int e = kNone;
  for (int i = 0; i < kCdna3Group; ++i) {
    const Term t = product(a[i], b[i]);
    if (t.magnitude != 0) e = std::max(e, t.exponent);
  }
  std::int64_t products = 0;
  for (int i = 0; i < kCdna3Group; ++i) products += cut(product(a[i], b[i]), e - 24);

  const Significand acc = significand_of(c);  // the exponent of a zero is -126
  const int exponent = std::max(e, acc.exponent);
  const int unit = exponent - 32;
  const std::int64_t acc_bits = acc.negative ? -std::int64_t{acc.bits} : std::int64_t{acc.bits};
  const std::int64_t acc_cut = floor_to(acc_bits, acc.exponent - 23, exponent - 24);
  const std::int64_t sum =
      floor_to(products, e - 24, unit) + floor_to(acc_cut, exponent - 24, unit);
  if (sum == 0) return 0.0f;

  const int last = std::max(leading_exponent(sum, unit), -126) - 31;
  const int result_unit = std::max(last, unit);
  return round_to_f32(floor_to(sum, unit, result_unit), result_unit, Rounding::kNearestEven);
}

}  // namespace rlk::numerics::mma
