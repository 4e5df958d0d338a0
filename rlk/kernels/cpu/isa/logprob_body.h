// The log-sum-exp of a row, its gradient, and log-softmax: one text for every instruction set.
// Included inside the anonymous namespace of logprob_*.cc, after the vectors.

using rlk::cpu::LogitPiece;
using rlk::cpu::LogitRowEnd;
using rlk::cpu::LogprobGradient;
using rlk::cpu::LogprobSums;

constexpr float kLowest = -0x1p30f;       // below it a logit takes no part
constexpr float kHighest = 0x1p30f;       // above it a logit is an error
constexpr float kFar = 0x1p12f;           // from here on n and f come from f64
constexpr std::int32_t kNowhere = -1024;  // n - 16B of a logit without a bin
constexpr std::int32_t kInfinityBits = 0x7f800000;

// n and f of e^z = 2^(n + f), for logits that take part.
struct Terms {
  I n;
  F f;
};

inline Terms near_terms(F z) {
  const F magic = set1(0x1.8p23f);
  const F log2e = set1(0x1.715476p+0f);
  const F t = fma(z, log2e, magic);
  const F n = t - magic;
  return {bits(t) - bits(magic), fma(z, set1(0x1.4ae0cp-26f), fma(z, log2e, neg(n)))};
}

inline std::int32_t far_term(float z, float* f) {
  const double x = static_cast<double>(z) * 0x1.71547652b82fep+0;
  const double n = (x + 0x1.8p52) - 0x1.8p52;
  *f = static_cast<float>(x - n);
  return static_cast<std::int32_t>(n);
}

// Replaces the terms of far logits; n not below `floor`, so that n - 16B stays in range.
__attribute__((noinline)) void fix_far_terms(Terms* terms, F z, std::int32_t floor) {
  float zs[kWidth], fs[kWidth];
  std::int32_t ns[kWidth];
  store(zs, z);
  store(fs, terms->f);
  store(ns, terms->n);
  for (int i = 0; i < kWidth; ++i) {
    if (__builtin_fabsf(zs[i]) < kFar || !(zs[i] >= kLowest) || zs[i] > kHighest) continue;
    const std::int32_t n = far_term(zs[i], &fs[i]);
    ns[i] = n < floor ? floor : n;
  }
  *terms = {load(ns), load(fs)};
}

// Terms of logits, some of which may be far where kGeneral.
template <bool kGeneral>
inline Terms terms_of(F z, M part, std::int32_t bin) {
  Terms terms = near_terms(z);
  if constexpr (kGeneral) {
    if (any(part & less_equal(set1(kFar), abs(z)))) fix_far_terms(&terms, z, 16 * bin + kNowhere);
  }
  return terms;
}

inline I lane_numbers() {
  std::int32_t lane[kWidth];
  for (std::int32_t i = 0; i < kWidth; ++i) lane[i] = i;
  return load(lane);
}

// Which tokens of a piece take part. Without kGeneral all do: no mask, no filter.
template <bool kGeneral>
struct Part {
  F z = set1(0.0f);
  I id = set1(std::int32_t{0}), next = id;

  explicit Part(const LogitPiece& piece) {
    if constexpr (kGeneral) {
      z = set1(piece.cut ? piece.cut->z : kLowest);
      id = set1(piece.cut ? piece.cut->id : INT32_MAX);
      next = lane_numbers() + set1(static_cast<std::int32_t>(piece.first_id));
    }
  }
  // For vector after vector.
  M of(F logits, M lanes) {
    if constexpr (!kGeneral) return lanes;
    const M tie = equal(logits, z) & !less(id, next);
    next = next + set1(std::int32_t{kWidth});
    return lanes & (less(z, logits) | tie);
  }
};

// body(k, lanes, whole) for every vector of n elements.
template <typename Body>
inline void for_each_vector(std::int64_t n, const Body& body) {
  const M all_lanes = first_lanes(kWidth);
  std::int64_t k = 0;
  for (; k + kWidth <= n; k += kWidth) body(k, all_lanes, kWidth);
  if (k < n) body(k, first_lanes(static_cast<int>(n - k)), static_cast<int>(n - k));
}
inline F load_lanes(const float* x, int count) {
  return count == kWidth ? load(x) : load_n(x, count);
}

// exp2m/1
inline F power_of(F f) {
  F p = fma(set1(0x1.665fe4p-13f), f, set1(0x1.5fe442p-10f));
  p = fma(p, f, set1(0x1.3afb86p-7f));
  p = fma(p, f, set1(0x1.c6ad62p-5f));
  p = fma(p, f, set1(0x1.ebfc18p-3f));
  p = fma(p, f, set1(0x1.62e432p-1f));
  return fma(p, f, set1(1.0f));
}

// Highest number and largest magnitude of a piece.
struct Range {
  F highest = set1(-__builtin_inff());
  I magnitude = set1(std::int32_t{0});

  void add(F x) {
    highest = max(x, highest);
    magnitude = max(magnitude, bits(x) & set1(std::int32_t{0x7fffffff}));
  }
  void add_n(F x, int count) {  // lanes past the end are 0
    highest = max(select(first_lanes(count), x, highest), highest);
    magnitude = max(magnitude, bits(x) & set1(std::int32_t{0x7fffffff}));
  }
  void add(const Range& other) {
    highest = max(highest, other.highest);
    magnitude = max(magnitude, other.magnitude);
  }
  std::int32_t largest() const {
    std::int32_t lane[kWidth];
    store(lane, magnitude);
    std::int32_t m = 0;
    for (std::int32_t l : lane) m = l > m ? l : m;
    return m;
  }
};

inline Range range_of(const float* x, std::int64_t n) {
  Range range[4];
  std::int64_t k = 0;
  for (; k + 4 * kWidth <= n; k += 4 * kWidth) {
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) range[i].add(load(x + k + i * kWidth));
  }
  for (; k + kWidth <= n; k += kWidth) range[0].add(load(x + k));
  if (k < n) {
    const int count = static_cast<int>(n - k);
    range[0].add_n(load_n(x + k, count), count);
  }
  range[0].add(range[1]);
  range[2].add(range[3]);
  range[0].add(range[2]);
  return range[0];
}

// The sums T_k of v * 2^(n & 15) over the terms with n >= 16 (B - k); the bins are their
// differences. A term is cut at bit 22 in two numbers that are added in 32 bits, and put together
// after at most kSteps vectors: 2^9 of less than 2^22, or of less than 2^21 with a sign.
struct SplitSums {
  static constexpr std::int64_t kSteps = 512;
  I low[4], high[4];
  L total[4];

  SplitSums() {
    clear();
    for (L& x : total) x = set1_i64(0);
  }
  void clear() {
    for (I& x : low) x = set1(std::int32_t{0});
    for (I& x : high) x = set1(std::int32_t{0});
  }
  void add(I v, I shift, const M (&at_least)[4]) {
    const I v_low = shift_left(v, shift) & set1(std::int32_t{0x3fffff});
    const I v_high = shift_right(v, set1(std::int32_t{22}) - shift);
#pragma GCC unroll 4
    for (int k = 0; k < 4; ++k) {
      low[k] = add_where(at_least[k], low[k], v_low);
      high[k] = add_where(at_least[k], high[k], v_high);
    }
  }
  void join() {
    for (int k = 0; k < 4; ++k) {
      const L upper = low_half(high[k]) + high_half(high[k]);
      total[k] = total[k] + (low_half(low[k]) + high_half(low[k]));
      total[k] = total[k] + shift_left(upper, set1_i64(22));
    }
    clear();
  }
  void bins(std::int64_t (&s)[4]) const {
    std::int64_t before = 0;
    for (int k = 0; k < 4; ++k) {
      std::int64_t lane[kWidth / 2];
      store(lane, total[k]);
      std::int64_t sum = 0;
      for (std::int64_t l : lane) sum += l;
      s[k] = sum - before;
      before = sum;
    }
  }
};

template <bool kGeneral, bool kEntropy>
inline void add_terms(LogprobSums* out, const LogitPiece& piece) {
  SplitSums sums, entropy;
  const F factor = set1(piece.scale);
  const std::int32_t top = 16 * out->bin;
  Part<kGeneral> part(piece);
  for (std::int64_t begin = 0; begin < piece.n; begin += SplitSums::kSteps * kWidth) {
    const std::int64_t left = piece.n - begin, most = SplitSums::kSteps * kWidth;
    const float* x = piece.x + begin;
    for_each_vector(left < most ? left : most, [&](std::int64_t k, M lanes, int count) {
      const F z = load_lanes(x + k, count) * factor;
      const M in = part.of(z, lanes);
      const Terms terms = terms_of<kGeneral>(z, in, out->bin);
      const F qf = power_of(terms.f) * set1(0x1p24f);  // an integer
      const I q = to_i32(qf);
      const I shift = terms.n & set1(std::int32_t{15});
      M at_least[4];
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        at_least[i] = less(set1(top - 16 * i - 1), terms.n);
        if (kGeneral || count < kWidth) at_least[i] = at_least[i] & in;
      }
      sums.add(q, shift, at_least);
      if constexpr (kEntropy) {
        const I v = q * (shift - set1(std::int32_t{8})) + round_to_i32(qf * terms.f);
        entropy.add(v, shift, at_least);
      }
    });
    sums.join();
    if constexpr (kEntropy) entropy.join();
  }
  sums.bins(out->s);
  if constexpr (kEntropy) entropy.bins(out->e);
}

inline std::int32_t bin_of(float z) {
  if (__builtin_fabsf(z) >= kFar) {
    float f;
    return far_term(z, &f) >> 4;
  }
  std::int32_t lane[kWidth];
  store(lane, near_terms(set1(z)).n);
  return lane[0] >> 4;
}

void sums(LogprobSums* out, const LogitPiece& piece, bool entropy) {
  const Range range = range_of(piece.x, piece.n);
  const std::int32_t magnitude = range.largest();
  const float z_max = max_lane(range.highest) * piece.scale + 0.0f;  // rounding keeps the order
  *out = LogprobSums{};
  out->bad = magnitude >= kInfinityBits || !(z_max <= kHighest);
  out->wide = !(__builtin_bit_cast(float, magnitude) * piece.scale < kFar);
  out->any = !out->bad && (piece.cut || z_max >= kLowest);
  if (!out->any) return;
  out->z_max = piece.cut ? piece.cut->z_max : z_max;
  // n never falls as z rises, so the highest bin is that of z_max.
  out->bin = piece.cut ? piece.cut->bin : bin_of(z_max);
  if (out->wide || piece.cut) {
    entropy ? add_terms<true, true>(out, piece) : add_terms<true, false>(out, piece);
  } else {
    entropy ? add_terms<false, true>(out, piece) : add_terms<false, false>(out, piece);
  }
}

// p_j of section 5.
inline F probability(const Terms& terms, const LogitRowEnd& row) {
  const I d = terms.n - set1(16 * row.bin);
  const F size = from_bits(shift_left<23>(d + set1(std::int32_t{127})));
  return select(less(set1(std::int32_t{-49}), d),
                (power_of(terms.f) * set1(row.inverse)) * size, zero());
}

// dz of tokens whose [j = target] is `hit`.
template <bool kGeneral, bool kEntropy>
inline F gradient_of(F x, F hit, M lanes, Part<kGeneral>& part, const LogitPiece& piece,
                     const LogitRowEnd& row, const LogprobGradient& g) {
  const F z = x * set1(piece.scale);
  const M in = part.of(z, lanes);
  const F p = probability(terms_of<kGeneral>(z, in, row.bin), row);
  F dz = (hit - p) * set1(g.g);
  if constexpr (kEntropy) {
    const F logp = subtract_f64(z, row.z_max, row.c);
    dz = dz - (p * (logp + set1(g.entropy))) * set1(g.g_entropy);
  }
  dz = dz * set1(g.out_scale);
  return kGeneral ? select(in, dz, zero()) : dz;
}

template <bool kGeneral, bool kEntropy, typename T>
inline void gradient_piece(T* dz, const LogitPiece& piece, const LogitRowEnd& row,
                           const LogprobGradient& g) {
  Part<kGeneral> part(piece);
  for_each_vector(piece.n, [&](std::int64_t k, M lanes, int count) {
    const F y = gradient_of<kGeneral, kEntropy>(load_lanes(piece.x + k, count), zero(), lanes, part,
                                                piece, row, g);
    count == kWidth ? store_value(dz + k, y) : store_value_n(dz + k, y, count);
  });
  const std::int64_t at = g.target - piece.first_id;
  if (at < 0 || at >= piece.n) return;
  LogitPiece one = piece;
  one.first_id += at;
  Part<kGeneral> target(one);
  const F y = gradient_of<kGeneral, kEntropy>(load_n(piece.x + at, 1), set1(1.0f), first_lanes(1),
                                              target, piece, row, g);
  store_value_n(dz + at, y, 1);
}

template <typename T>
inline void gradient(T* dz, const LogitPiece& piece, const LogitRowEnd& row,
                     const LogprobGradient& g) {
  const bool general = row.wide || piece.cut;
  if (g.g_entropy != 0.0f) {
    general ? gradient_piece<true, true>(dz, piece, row, g)
            : gradient_piece<false, true>(dz, piece, row, g);
  } else {
    general ? gradient_piece<true, false>(dz, piece, row, g)
            : gradient_piece<false, false>(dz, piece, row, g);
  }
}
void gradient_bf16(std::uint16_t* dz, const LogitPiece& piece, const LogitRowEnd& row,
                   const LogprobGradient& g) {
  gradient(dz, piece, row, g);
}
void gradient_f32(float* dz, const LogitPiece& piece, const LogitRowEnd& row,
                  const LogprobGradient& g) {
  gradient(dz, piece, row, g);
}

template <bool kGeneral>
inline void log_softmax_piece(float* y, const LogitPiece& piece, const LogitRowEnd& row) {
  Part<kGeneral> part(piece);
  const F out = set1(-__builtin_inff());
  for_each_vector(piece.n, [&](std::int64_t k, M lanes, int count) {
    const F z = load_lanes(piece.x + k, count) * set1(piece.scale);
    F logp = subtract_f64(z, row.z_max, row.c);
    if constexpr (kGeneral) logp = select(part.of(z, lanes), logp, out);
    count == kWidth ? store(y + k, logp) : store_n(y + k, logp, count);
  });
}
void log_softmax(float* y, const LogitPiece& piece, const LogitRowEnd& row) {
  row.wide || piece.cut ? log_softmax_piece<true>(y, piece, row)
                        : log_softmax_piece<false>(y, piece, row);
}

void lane_sums(float* lane, std::int64_t lanes, const float* dy, const LogitPiece& piece) {
  Part<true> part(piece);
  for_each_vector(piece.n, [&](std::int64_t k, M whole, int count) {
    const M in = part.of(load_lanes(piece.x + k, count) * set1(piece.scale), whole);
    float* at = lane + (k & (lanes - 1));
    const F sum = load(at);
    store(at, select(in, sum + load_lanes(dy + k, count), sum));
  });
}

template <bool kGeneral, typename T>
inline void log_softmax_gradient_piece(T* dz, const float* dy, float sum, float out_scale,
                                       const LogitPiece& piece, const LogitRowEnd& row) {
  Part<kGeneral> part(piece);
  for_each_vector(piece.n, [&](std::int64_t k, M lanes, int count) {
    const F z = load_lanes(piece.x + k, count) * set1(piece.scale);
    const M in = part.of(z, lanes);
    const F p = probability(terms_of<kGeneral>(z, in, row.bin), row);
    F y = (load_lanes(dy + k, count) - p * set1(sum)) * set1(out_scale);
    if constexpr (kGeneral) y = select(in, y, zero());
    count == kWidth ? store_value(dz + k, y) : store_value_n(dz + k, y, count);
  });
}
template <typename T>
inline void log_softmax_gradient(T* dz, const float* dy, float sum, float out_scale,
                                 const LogitPiece& piece, const LogitRowEnd& row) {
  if (row.wide || piece.cut) {
    log_softmax_gradient_piece<true>(dz, dy, sum, out_scale, piece, row);
  } else {
    log_softmax_gradient_piece<false>(dz, dy, sum, out_scale, piece, row);
  }
}
void log_softmax_gradient_bf16(std::uint16_t* dz, const float* dy, float sum, float out_scale,
                               const LogitPiece& piece, const LogitRowEnd& row) {
  log_softmax_gradient(dz, dy, sum, out_scale, piece, row);
}
void log_softmax_gradient_f32(float* dz, const float* dy, float sum, float out_scale,
                              const LogitPiece& piece, const LogitRowEnd& row) {
  log_softmax_gradient(dz, dy, sum, out_scale, piece, row);
}
