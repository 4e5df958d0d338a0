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
#include <cmath>
#include <cstdint>

#include "rlk/numerics/math.h"

namespace rlk::numerics {

__extension__ typedef unsigned __int128 uint128;

inline int biased_exponent(float x) {
  return std::max(1, static_cast<int>((std::bit_cast<std::uint32_t>(x) >> 23) & 0xffu));
}

// First pass. 1 for zeros and subnormals; 255 says that NaN or infinity was met: an error.
struct MaxExponent {
  int value = 1;

  void add(float x) { value = std::max(value, biased_exponent(x)); }
  void merge(const MaxExponent& other) { value = std::max(value, other.value); }
  bool finite() const { return value != 255; }
};

// Second pass, with the E of all shards. Q stays below 2^128 for 2^64 elements.
struct NormSum {
  int exponent;   // E, in [1, 254]
  uint128 q = 0;  // Q

  explicit NormSum(const MaxExponent& e) : exponent(e.value) {}

  void add(float x) {
    const int shift = 2 * (exponent - biased_exponent(x));
    if (shift >= 64) return;
    const std::uint32_t u = std::bit_cast<std::uint32_t>(x);
    const std::uint64_t hidden = (u & 0x7f800000u) != 0 ? 0x800000u : 0u;
    const std::uint64_t mant = hidden | (u & 0x7fffffu);
    q += ((mant * mant) << 16) >> shift;
  }

  // Requires the same exponent on both sides.
  void merge(const NormSum& other) { q += other.q; }

  // Infinity when the norm exceeds f32: the caller reports it as non-finite.
  float finish() const {
    return static_cast<float>(std::sqrt(static_cast<double>(q) * pow2_f64(2 * exponent - 316)));
  }
};

// The factor of every element when norm > max_norm (g = dW * factor, f32); 1 otherwise.
inline float clip_factor(float norm, float max_norm) {
  return norm > max_norm ? max_norm / norm : 1.0f;
}

}  // namespace rlk::numerics
