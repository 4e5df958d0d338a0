// The exact gradient norm (section 6 of the contract): integers, so any shard and any order gives
// the same bits.
//
//   E = largest biased exponent, Q = sum of floor(mant^2 * 2^16 / 4^(E-e)),
//   norm = f32(sqrt(f64(Q) * 2^(2E-316)))
//
// The floor is per element and depends on the final E, so no sum kept while E still grows could
// give this value: two passes. First MaxExponent over every element (merge across shards), then
// NormSum.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "rlk/numerics/math.h"

namespace rlk::numerics {

__extension__ typedef unsigned __int128 uint128;

RLK_HD inline int biased_exponent(float x) {
  const int e = static_cast<int>((std::bit_cast<std::uint32_t>(x) >> 23) & 0xffu);
  return e > 1 ? e : 1;
}

// The f64 nearest to x, ties to even. (Not every GPU compiler has this conversion.)
RLK_HD inline double to_f64(uint128 x) {
  // 64 bits with a sticky one round like all of them.
  int shift = 0;
  std::uint64_t sticky = 0;
  for (; (x >> 64) != 0; x >>= 1, ++shift) sticky |= static_cast<std::uint64_t>(x) & 1;
  return static_cast<double>(static_cast<std::uint64_t>(x) | sticky) * pow2_f64(shift);
}

// First pass. 1 for zeros and subnormals; 255 says that NaN or infinity was met: an error.
struct MaxExponent {
  int value = 1;

  RLK_HD void add(float x) { merge({biased_exponent(x)}); }
  RLK_HD void merge(const MaxExponent& other) { value = other.value > value ? other.value : value; }
  RLK_HD bool finite() const { return value != 255; }
};

// Second pass, with the E of all shards. Q stays below 2^128 for 2^64 elements.
struct NormSum {
  int exponent;   // E, in [1, 254]
  uint128 q = 0;  // Q

  RLK_HD explicit NormSum(const MaxExponent& e) : exponent(e.value) {}

  RLK_HD void add(float x) {
    const int shift = 2 * (exponent - biased_exponent(x));
    if (shift >= 64) return;
    const std::uint32_t u = std::bit_cast<std::uint32_t>(x);
    const std::uint64_t hidden = (u & 0x7f800000u) != 0 ? 0x800000u : 0u;
    const std::uint64_t mant = hidden | (u & 0x7fffffu);
    q += ((mant * mant) << 16) >> shift;
  }

  // Requires the same exponent on both sides.
  RLK_HD void merge(const NormSum& other) { q += other.q; }

  // Infinity when the norm exceeds f32: the caller reports it as non-finite.
  RLK_HD float finish() const {
    return static_cast<float>(sqrt(to_f64(q) * pow2_f64(2 * exponent - 316)));
  }
};

// The factor of every element when norm > max_norm (g = dW * factor, f32); 1 otherwise.
RLK_HD inline float clip_factor(float norm, float max_norm) {
  return norm > max_norm ? max_norm / norm : 1.0f;
}

}  // namespace rlk::numerics
