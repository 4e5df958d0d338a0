// The two f64 sequences that end section 5 of the contract: exp2_64/1 and log1p64/1. IEEE f64
// operations and fma only. docs/numerics.md prints them as formulas.
//
// Source: constants from tools/gen_numerics_constants.py; measured errors in
// tests/numerics/math_test.cc.
#pragma once

#include <bit>
#include <cstdint>

#include "rlk/numerics/math.h"

namespace rlk::numerics {

// exp2_64/1: 2^x, |x| <= 0.51. Exactly 1 at 0. Largest error found 0.88 ulp, at
// -0x1.02207098dcd56p-1.
RLK_HD inline double exp2_64(double x) {
  return horner(x, 0x1.c2c4ece055334p-36, 0x1.ea0dc86dcd15fp-32, 0x1.e4d083c528c18p-28,
                0x1.b524d57c0d86ap-24, 0x1.62c021d75c623p-20, 0x1.ffcbfc785fe9ep-17,
                0x1.430912f887cdfp-13, 0x1.5d87fe78a1bdap-10, 0x1.3b2ab6fba4e10p-7,
                0x1.c6b08d704a0d2p-5, 0x1.ebfbdff82c58fp-3, 0x1.62e42fefa39efp-1, 1.0);
}

// log1p64/1: log(1 + r), 0 <= r <= 2^21. Exactly 0 at 0. Largest error found 1.37 ulp, at
// 0x1.b0e3b5468e6a1p-2.
//   u = 1 + r, and what u lost is d; u = 2^k m with m in [sqrt(1/2), sqrt(2)); 1 + r = 2^k (1 + f)
//   s = f / (2 + f), z = s^2, so log(1+f) = log((1+s)/(1-s)) = 2s + s z G(z)
//   and 2s = f - s f = f - (h - s h) with h = f^2 / 2: the sum below keeps f, the largest term,
//   last.
RLK_HD inline double log1p64(double r) {
  const double u = 1.0 + r;
  const double d = r < 1.0 ? r - (u - 1.0) : 1.0 - (u - r);  // exact
  const std::uint64_t bits = std::bit_cast<std::uint64_t>(u);
  const int k = static_cast<int>(static_cast<std::int64_t>(bits - 0x3fe6a09e667f3bcdu) >> 52);
  const double m = std::bit_cast<double>(bits - (static_cast<std::uint64_t>(k) << 52));
  const double f = (m - 1.0) + d * pow2_f64(-k);  // = r when k = 0
  const double s = f / (2.0 + f);
  const double z = s * s;
  const double g = horner(z, 0x1.2f322884e6bf7p-3, 0x1.399d7df5e4199p-3, 0x1.746666cd4658ep-3,
                          0x1.c71c5151fa961p-3, 0x1.24924942c44a3p-2, 0x1.999999997efe9p-2,
                          0x1.5555555555595p-1);
  const double h = 0.5 * (f * f);
  const double n = static_cast<double>(k);
  // ln 2 = the 32-bit head 0x1.62e42ff000000p-1 (times k: exact) + the tail -0x1.718432a1b0e26p-35.
  const double tail = fma(n, -0x1.718432a1b0e26p-35, s * fma(z, g, h));
  return fma(n, 0x1.62e42ff000000p-1, f - (h - tail));
}

}  // namespace rlk::numerics
