// The contract's math primitives on the vectors of vec_*.h, one text for every instruction set.
// Included inside the same anonymous namespace, after the vectors.

inline F select_nan(F x, F y) {
  return select(is_nan(x), from_bits(set1(std::int32_t{0x7fc00000})), y);
}

// exp2p/1: 2^x for x <= 126, 2^-18 relative. NaN stays NaN.
inline F exp2p(F x) {
  const F magic = set1(0x1.8p23f);
  x = max(set1(-126.0f), x);  // the second operand where either is NaN
  const F t = x + magic;
  const F f = x - (t - magic);
  F p = fma(set1(0x1.409104p-7f), f, set1(0x1.ca9008p-5f));
  p = fma(p, f, set1(0x1.ebf1b4p-3f));
  p = fma(p, f, set1(0x1.62dfcap-1f));
  p = fma(p, f, set1(1.0f));
  return from_bits(bits(p) + shift_left<23>(bits(t)));
}

// exp/1 before its last step: e^x = y * 2^n, with n in the lowest bits of t. x is not NaN, and in
// [-104, 0x1.62e43p+6].
struct ExpParts {
  F y, t, n;
};

inline ExpParts exp_parts(F x) {
  const F magic = set1(0x1.8p23f);
  const F lnl = set1(0x1.05c61p-29f);
  const F t = fma(x, set1(0x1.715476p+0f), magic);
  const F n = t - magic;
  const F r1 = fma(n, set1(-0x1.62e43p-1f), x);
  const F s = set1(1.0f) + r1;
  const F w = fma(n, lnl, r1 - (s - set1(1.0f)));
  const F r = fma(n, lnl, r1);
  F q = fma(set1(0x1.6a23dp-10f), r, set1(0x1.123a2p-7f));
  q = fma(q, r, set1(0x1.5558f2p-5f));
  q = fma(q, r, set1(0x1.555492p-3f));
  q = fma(q, r, set1(0x1.fffffcp-2f));
  return {s + fma(q, r * r, w), t, n};
}

// exp/1: 0.78 ulp.
inline F exp(F x) {
  const F low = set1(-104.0f);
  const F high = set1(0x1.62e43p+6f);
  // The ends are set below; here they keep integers in range.
  const ExpParts parts = exp_parts(min(max(x, low), high));
  const I k = to_i32(parts.n);
  const I h = shift_right<1>(k);
  const I bias = set1(std::int32_t{127});
  F out = (parts.y * from_bits(shift_left<23>(h + bias))) *
          from_bits(shift_left<23>((k - h) + bias));
  out = select(less(high, x), from_bits(set1(std::int32_t{0x7f800000})), out);
  out = select(less(x, low), zero(), out);
  return select_nan(x, out);
}

// sigmoid(x) = 1 / (1 + exp(-x)) with exp/1, for x that is not NaN. Below e^-80 the exponential no
// longer reaches the sum, and from 0x1.62e43p+6 on it is infinite, so the power of two may simply
// be added to the exponent of y.
inline F sigmoid(F x) {
  const F v = neg(x);
  const ExpParts parts = exp_parts(min(max(v, set1(-80.0f)), set1(0x1.62e42ep+6f)));
  const F e = from_bits(bits(parts.y) + shift_left<23>(bits(parts.t)));
  return select(less(v, set1(0x1.62e43p+6f)), set1(1.0f) / (set1(1.0f) + e), zero());
}

// Sum of `count` vectors (a power of two, at least 1) by the neighbour tree; x is overwritten.
inline float neighbour_tree(F* x, int count) {
  for (; count > 1; count /= 2) {
    for (int i = 0; i < count / 2; ++i) x[i] = pair_add(x[2 * i], x[2 * i + 1]);
  }
  F last = x[0];
  for (int lanes = kWidth; lanes > 1; lanes /= 2) last = pair_add(last, last);
  return lane0(last);
}

// log/1 of positive normal numbers: 0.98 ulp.
inline F log_normal(F x) {
  const F lnl = set1(0x1.05c61p-29f);
  const F ln2 = set1(0x1.62e43p-1f);
  const I e = shift_right<23>(bits(x) - set1(std::int32_t{0x3f2aaaab}));
  const F f = from_bits(bits(x) - shift_left<23>(e)) - set1(1.0f);
  const F k = to_f32(e);
  F q = fma(set1(-0x1.109fep-3f), f, set1(0x1.1ed8f8p-3f));
  q = fma(q, f, set1(-0x1.eeb894p-4f));
  q = fma(q, f, set1(0x1.1ebca6p-3f));
  q = fma(q, f, set1(-0x1.55cd1p-3f));
  q = fma(q, f, set1(0x1.99d212p-3f));
  q = fma(q, f, set1(-0x1.fffd6ap-3f));
  q = fma(q, f, set1(0x1.555502p-2f));
  q = fma(q, f, set1(-0x1p-1f));
  const F lo = fma(k, neg(lnl), q * (f * f));
  const F r = fma(k, ln2, f);
  return r + (lo + (fma(k, ln2, neg(r)) + f));
}
