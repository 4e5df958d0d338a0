// The contract's f32 math primitives: fixed sequences of IEEE and integer operations. No library
// function and no hardware approximation, so every machine gives the same bits.
//
// Source: the contract, "Math primitives"; tools/gen_numerics_constants.py checks the polynomials;
// tests/numerics/math_test.cc states the measured errors.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <limits>
#include <string_view>

#include "rlk/numerics/ieee.h"

namespace rlk::numerics {

// Everything here that fixes a bit. One whose bits change gets a new number, here and in the
// contract data (a test holds the two lists together).
inline constexpr std::array<std::string_view, 10> kPrimitiveVersions = {
    "adamw/1",     "exp/1",    "exp2_64/1", "exp2m/1",   "exp2p/1",
    "grad_norm/1", "gumbel/1", "log/1",     "log1p64/1", "rope_table/1",
};

inline constexpr float kRoundMagic = 0x1.8p23f;      // M: x + M - M rounds |x| < 2^22 to an integer
inline constexpr float kLog2E = 0x1.715476p+0f;      // L2E, also L_hi of section 5
inline constexpr float kLog2ELow = 0x1.4ae0cp-26f;   // L_lo of section 5: log2(e) - L_hi
inline constexpr float kLn2High = 0x1.62e43p-1f;     // LN2: above ln 2
inline constexpr float kLn2Excess = 0x1.05c61p-29f;  // LNL: ln 2 = LN2 - LNL

inline constexpr float kInfinity = std::numeric_limits<float>::infinity();
RLK_HD inline float quiet_nan() { return std::bit_cast<float>(0x7fc00000u); }
RLK_HD inline bool is_nan(float x) { return x != x; }
RLK_HD inline bool is_finite(float x) {
  return (std::bit_cast<std::uint32_t>(x) & 0x7f800000u) != 0x7f800000u;
}

// 2^n as f32, -126 <= n <= 127, and as f64, -1022 <= n <= 1023.
RLK_HD inline float pow2_f32(int n) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(n + 127) << 23);
}
RLK_HD inline double pow2_f64(int n) {
  return std::bit_cast<double>(static_cast<std::uint64_t>(n + 1023) << 52);
}

// P(x; a, b, ..): Horner by fma, highest coefficient first.
template <typename T, typename... Rest>
RLK_HD inline T horner(T x, T first, Rest... rest) {
  T p = first;
  ((p = fma(p, x, static_cast<T>(rest))), ...);
  return p;
}

// P of exp2p: the coefficients of f^4, .., f.
inline constexpr float kExp2p4 = 0x1.409104p-7f, kExp2p3 = 0x1.ca9008p-5f;
inline constexpr float kExp2p2 = 0x1.ebf1b4p-3f, kExp2p1 = 0x1.62dfcap-1f;

// exp2p/1: 2^x for attention. -126 and below give 2^-126; x <= 126 is required; not for NaN (the
// contract's checks keep NaN out of attention).
// Largest relative error 2^-18.07, at 0x1.2e5e98p-1; exactly 1 at 0.
RLK_HD inline float exp2p(float x) {
  x = x > -126.0f ? x : -126.0f;
  const float t = x + kRoundMagic;
  const float f = x - (t - kRoundMagic);
  const float p = horner(f, kExp2p4, kExp2p3, kExp2p2, kExp2p1, 1.0f);
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(p) +
                              (std::bit_cast<std::uint32_t>(t) << 23));
}

// exp2m/1: 2^f for section 5, |f| <= 0.501. 2^24 times the result is an integer. Largest relative
// error 2^-23.66, at -0x1.00591cp-1.
RLK_HD inline float exp2m(float f) {
  return horner(f, 0x1.665fe4p-13f, 0x1.5fe442p-10f, 0x1.3afb86p-7f, 0x1.c6ad62p-5f, 0x1.ebfc18p-3f,
                0x1.62e432p-1f, 1.0f);
}

// exp(x) / 2^n of exp, where n is x * log2(e) rounded to an integer.
RLK_HD inline float exp_reduced(float x, float n) {
  const float r1 = fma(n, -kLn2High, x);
  const float s = 1.0f + r1;
  const float w = fma(n, kLn2Excess, r1 - (s - 1.0f));  // what s lost, and the tail of ln 2
  const float r = fma(n, kLn2Excess, r1);
  const float q =
      horner(r, 0x1.6a23dp-10f, 0x1.123a2p-7f, 0x1.5558f2p-5f, 0x1.555492p-3f, 0x1.fffffcp-2f);
  return s + fma(q, r * r, w);
}

// exp/1: all f32. Largest error 0.7791 ulp, at -0x1.5ed742p+6. Overflow gives inf, NaN gives
// 0x7FC00000.
RLK_HD inline float exp(float x) {
  if (is_nan(x)) return quiet_nan();
  if (x > 0x1.62e43p+6f) return kInfinity;
  if (x < -104.0f) return 0.0f;
  const float n = fma(x, kLog2E, kRoundMagic) - kRoundMagic;
  const float y = exp_reduced(x, n);
  // Two exact steps but for the last: a result below 2^-126 is rounded once.
  const int scale = static_cast<int>(n);
  const int half = scale >> 1;
  return (y * pow2_f32(half)) * pow2_f32(scale - half);
}

// log/1: all f32. Largest error 0.9809 ulp, at 0x1.55a0d6p+0. log(+-0) = -inf, log(x < 0) = NaN,
// log(inf) = inf.
RLK_HD inline float log(float x) {
  if (is_nan(x) || x < 0.0f) return quiet_nan();
  if (x == 0.0f) return -kInfinity;
  if (x == kInfinity) return x;
  int offset = 0;
  if (x < 0x1p-126f) {
    x *= 0x1p23f;
    offset = 23;
  }
  const std::uint32_t u = std::bit_cast<std::uint32_t>(x);
  const std::int32_t e = static_cast<std::int32_t>(u - 0x3f2aaaabu) >> 23;
  const float m = std::bit_cast<float>(u - (static_cast<std::uint32_t>(e) << 23));  // [2/3, 4/3)
  const float k = static_cast<float>(e - offset);
  const float f = m - 1.0f;
  const float q = horner(f, -0x1.109fep-3f, 0x1.1ed8f8p-3f, -0x1.eeb894p-4f, 0x1.1ebca6p-3f,
                         -0x1.55cd1p-3f, 0x1.99d212p-3f, -0x1.fffd6ap-3f, 0x1.555502p-2f, -0x1p-1f);
  const float lo = fma(k, -kLn2Excess, q * (f * f));
  const float r = fma(k, kLn2High, f);
  return r + (lo + (fma(k, kLn2High, -r) + f));
}

// 1 / x for 1 <= x <= 2^126, rounded as the division is, by nine operations without a branch. The
// first guess is up to 1.125 times too large, two steps of third order leave less than an ulp, and
// the last one finds the nearest number. (A guess that may be too small fails where the significand
// of x is all ones.)
RLK_HD inline float reciprocal(float x) {
  float y = std::bit_cast<float>(0x7f000000u - std::bit_cast<std::uint32_t>(x));
  for (int i = 0; i < 2; ++i) {
    const float e = fma(-x, y, 1.0f);
    y = fma(y, fma(e, e, e), y);
  }
  return fma(y, fma(-x, y, 1.0f), y);
}

// IEEE root and division: two roundings.
RLK_HD inline float rsqrt(float x) { return 1.0f / sqrt(x); }

RLK_HD inline float sigmoid(float x) { return 1.0f / (1.0f + exp(-x)); }

RLK_HD inline float silu(float x) { return x * sigmoid(x); }

}  // namespace rlk::numerics
