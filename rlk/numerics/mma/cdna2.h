// The BF16 matrix instructions of AMD CDNA2 (gfx90a, MI210 and MI250) with f32 accumulator. From
// publications, never run here. With fl(x) = x, or a zero of x's sign where x is subnormal:
//
//   subnormal a, b and c count as +0
//   p_i = fl(a_i * b_i)
//   `_1k` forms (32x32x8, 16x16x16):   c = fl(c + fl(fl(p0 + p1) + fl(p2 + p3)))
//   older forms (32x32x4, 16x16x8):    c = fl(c + fl(p0 + p1))
//
// All of it is IEEE f32, nearest even, with flushing. NaN is 0x7FC00000: the publications do not
// say which. The flushing ends at the instruction: outside, subnormals are numbers.
#pragma once

#include <cmath>

#include "rlk/core/dtype.h"
#include "rlk/numerics/bf16.h"
#include "rlk/numerics/math.h"

namespace rlk::numerics::mma {

inline constexpr int kCdna2Group = 4;

// The result of an operation.
inline float flushed(float x) { return std::fabs(x) < 0x1p-126f ? std::copysign(0.0f, x) : x; }

// An operand.
inline float flushed_operand(float x) { return x != 0.0f && std::fabs(x) < 0x1p-126f ? 0.0f : x; }

// Bf16 has the exponents of f32, so the product is exact unless it is flushed or infinite.
inline float cdna2_product(bf16 a, bf16 b) {
  return flushed(flushed_operand(to_f32(a)) * flushed_operand(to_f32(b)));
}

inline float canonical_nan(float x) { return is_nan(x) ? quiet_nan() : x; }

// One group of an older form: c + sum of a[i] * b[i], i in [0, 2).
inline float cdna2_pair_group(float c, const bf16* a, const bf16* b) {
  const float sum = flushed(cdna2_product(a[0], b[0]) + cdna2_product(a[1], b[1]));
  return canonical_nan(flushed(flushed_operand(c) + sum));
}

// One group of a `_1k` form: c + sum of a[i] * b[i], i in [0, 4).
inline float cdna2_group(float c, const bf16* a, const bf16* b) {
  const float low = flushed(cdna2_product(a[0], b[0]) + cdna2_product(a[1], b[1]));
  const float high = flushed(cdna2_product(a[2], b[2]) + cdna2_product(a[3], b[3]));
  return canonical_nan(flushed(flushed_operand(c) + flushed(low + high)));
}

}  // namespace rlk::numerics::mma
