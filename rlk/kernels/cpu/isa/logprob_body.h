// The log-sum-exp, its gradient and sampling, one text for every instruction set. Included inside
// the anonymous namespace of logprob_*.cc, after the vectors.

using rlk::cpu::BestToken;
using rlk::cpu::LogprobGradient;
using rlk::cpu::LogprobIsa;
using rlk::cpu::LogprobSums;
using rlk::cpu::SampleDraw;

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

// Terms of logits of which `part` take part; kWide: some may be far.
template <bool kWide>
inline Terms terms_of(F z, M part, std::int32_t bin) {
  Terms terms = near_terms(z);
  if constexpr (kWide) {
    if (any(part & less_equal(set1(kFar), abs(z)))) fix_far_terms(&terms, z, 16 * bin + kNowhere);
  }
  return terms;
}

template <bool kWide>
inline M takes_part(F z, M lanes) {
  if constexpr (kWide) return lanes & less_equal(set1(kLowest), z);
  return lanes;
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

// Sums T_k of v * 2^(d + 16k) mod 2^64 over the terms with d + 16k >= 0, d = n - 16B. A term of bin
// B-j is in T_k for every k >= j, there as 2^(16(k-j)) times its share of the bin; the bins are
// less than 2^63, so they follow exactly. That needs no mask per bin.
struct NestedSums {
  L t[4];

  NestedSums() {
    for (L& x : t) x = set1_i64(0);
  }
  void add(I v, I d) {
    const L low = low_half(v), low_d = low_half(d);
    const L high = high_half(v), high_d = high_half(d);
#pragma GCC unroll 4
    for (int k = 0; k < 4; ++k) {
      const L up = set1_i64(16 * k);
      t[k] = t[k] + (shift_left(low, low_d + up) + shift_left(high, high_d + up));
    }
  }
  void bins(std::int64_t (&s)[4]) const {
    std::uint64_t bin[4];
    for (int k = 0; k < 4; ++k) {
      std::int64_t lane[kWidth / 2];
      store(lane, t[k]);
      bin[k] = 0;
      for (std::int64_t l : lane) bin[k] += static_cast<std::uint64_t>(l);
      for (int j = 0; j < k; ++j) bin[k] -= bin[j] << (16 * (k - j));
    }
    for (int k = 0; k < 4; ++k) s[k] = static_cast<std::int64_t>(bin[k]);
  }
};

template <bool kWide, bool kEntropy>
inline void add_terms(LogprobSums* out, const float* x, std::int64_t n, float scale) {
  NestedSums sums, entropy;
  const I top = set1(16 * out->bin);
  const F factor = set1(scale);
  const auto add = [&](F logit, M lanes, bool whole) {
    const F z = logit * factor;
    const M part = takes_part<kWide>(z, lanes);
    const Terms terms = terms_of<kWide>(z, part, out->bin);
    const F qf = power_of(terms.f) * set1(0x1p24f);  // an integer
    const I q = to_i32(qf);
    I d = terms.n - top;
    if (kWide || !whole) d = select(part, d, set1(kNowhere));
    sums.add(q, d);
    if constexpr (kEntropy) {
      const I shift = terms.n & set1(std::int32_t{15});
      entropy.add(q * (shift - set1(std::int32_t{8})) + round_to_i32(qf * terms.f), d);
    }
  };
  std::int64_t k = 0;
  const M all_lanes = first_lanes(kWidth);
  for (; k + kWidth <= n; k += kWidth) add(load(x + k), all_lanes, true);
  if (k < n) {
    const int count = static_cast<int>(n - k);
    add(load_n(x + k, count), first_lanes(count), false);
  }
  sums.bins(out->s);
  if constexpr (kEntropy) entropy.bins(out->e);
}

void sums(LogprobSums* out, const float* x, std::int64_t n, float scale, bool checked,
          bool entropy) {
  const Range range = range_of(x, n);
  const std::int32_t magnitude = range.largest();
  const float z_max = max_lane(range.highest) * scale + 0.0f;  // rounding keeps the order
  *out = LogprobSums{};
  out->z_max = z_max;
  out->bad = !checked && (magnitude >= kInfinityBits || !(z_max <= kHighest));
  out->any = !out->bad && z_max >= kLowest;
  if (!out->any) return;
  out->wide = !(__builtin_bit_cast(float, magnitude) * scale < kFar);

  // n never falls as z rises, so the highest bin is that of z_max.
  if (__builtin_fabsf(z_max) < kFar) {
    std::int32_t lane[kWidth];
    store(lane, near_terms(set1(z_max)).n);
    out->bin = lane[0] >> 4;
  } else {
    float f;
    out->bin = far_term(z_max, &f) >> 4;
  }
  if (out->wide) {
    entropy ? add_terms<true, true>(out, x, n, scale) : add_terms<true, false>(out, x, n, scale);
  } else {
    entropy ? add_terms<false, true>(out, x, n, scale) : add_terms<false, false>(out, x, n, scale);
  }
}

template <bool kWide, bool kEntropy>
inline F gradient_of(const LogprobGradient& row, F x, M lanes, M is_target) {
  const F z = x * set1(row.scale);
  const M part = takes_part<kWide>(z, lanes);
  const Terms terms = terms_of<kWide>(z, part, row.bin);
  const I d = terms.n - set1(16 * row.bin);
  const F size = from_bits(shift_left<23>(d + set1(std::int32_t{127})));
  const F p = select(less(set1(std::int32_t{-49}), d),
                     (power_of(terms.f) * set1(row.inverse)) * size, zero());
  F dz = (select(is_target, set1(1.0f), zero()) - p) * set1(row.g);
  if constexpr (kEntropy) {
    const F logp = subtract_f64(z, row.z_max, row.c);
    dz = dz - (p * (logp + set1(row.entropy))) * set1(row.g_entropy);
  }
  return select(part, dz * set1(row.out_scale), zero());
}

inline I lane_numbers() {
  std::int32_t lane[kWidth];
  for (std::int32_t i = 0; i < kWidth; ++i) lane[i] = i;
  return load(lane);
}

template <bool kWide, bool kEntropy>
inline void gradient_row(std::uint16_t* dz, const LogprobGradient& row, const float* x,
                         std::int64_t n) {
  const bool here = row.target >= 0 && row.target < n;
  I distance = lane_numbers() - set1(here ? static_cast<std::int32_t>(row.target) : INT32_MAX);
  const I step = set1(std::int32_t{kWidth});
  const I none = set1(std::int32_t{0});
  const M all_lanes = first_lanes(kWidth);
  std::int64_t k = 0;
  for (; k + kWidth <= n; k += kWidth) {
    store_bf16(dz + k,
               gradient_of<kWide, kEntropy>(row, load(x + k), all_lanes, equal(distance, none)));
    distance = distance + step;
  }
  if (k < n) {
    const int count = static_cast<int>(n - k);
    store_bf16_n(dz + k,
                 gradient_of<kWide, kEntropy>(row, load_n(x + k, count), first_lanes(count),
                                              equal(distance, none)),
                 count);
  }
}

void gradient(std::uint16_t* dz, const LogprobGradient& row, const float* x, std::int64_t n) {
  const bool entropy = row.g_entropy != 0.0f;
  if (row.wide) {
    entropy ? gradient_row<true, true>(dz, row, x, n) : gradient_row<true, false>(dz, row, x, n);
  } else {
    entropy ? gradient_row<false, true>(dz, row, x, n) : gradient_row<false, false>(dz, row, x, n);
  }
}

inline void multiply_wide(I a, std::uint32_t b, I* low, I* high) {
  const L factor = set1_i64(std::int64_t{b});
  const L even = multiply_u32(even_lanes(a), factor);
  const L odd = multiply_u32(odd_lanes(a), factor);
  *low = join_low(even, odd);
  *high = join_high(even, odd);
}

inline I word(std::uint32_t x) { return set1(static_cast<std::int32_t>(x)); }

// Words of kWidth token groups, four tokens each: x[i] are those of 4 * group + i.
inline void philox(const SampleDraw& draw, I group, I (&x)[4]) {
  I c0 = group, c1 = word(draw.position), c2 = word(draw.request[0]), c3 = word(draw.request[1]);
  std::uint32_t k0 = draw.key[0], k1 = draw.key[1];
  for (int round = 0; round < 10; ++round) {
    I low0, high0, low1, high1;
    multiply_wide(c0, 0xD2511F53u, &low0, &high0);
    multiply_wide(c2, 0xCD9E8D57u, &low1, &high1);
    c0 = high1 ^ c1 ^ word(k0);
    c2 = high0 ^ c3 ^ word(k1);
    c1 = low1;
    c3 = low0;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  x[0] = c0;
  x[1] = c1;
  x[2] = c2;
  x[3] = c3;
}

// Words of 4 * kWidth token ids in order: x[i] are those of group * 4 + i * kWidth + lane.
inline void token_words(const SampleDraw& draw, std::uint32_t group, I (&x)[4]) {
  // Lane 4b + i holds the group that the transpose brings to block b of x[i].
  std::int32_t offset[kWidth];
  for (std::int32_t lane = 0; lane < kWidth; ++lane) {
    offset[lane] = (kWidth / 4) * (lane % 4) + lane / 4;
  }
  philox(draw, load(offset) + word(group), x);
  transpose_fours(x);
}

inline F gumbel_of(I words) {
  const F u = (to_f32(shift_right_logical<9>(words)) + set1(0.5f)) * set1(0x1p-23f);
  return neg(log_normal(neg(log_normal(u))));
}

struct BestLanes {
  F score = set1(-__builtin_inff());
  I id = set1(std::int32_t{0});

  void add(F x, I ids, M part) {
    const M better = part & less(score, x);  // a tie leaves the lower id
    score = select(better, x, score);
    id = select(better, ids, id);
  }
};

template <bool kGumbel>
inline void best_of(BestToken* out, const float* x, std::int64_t n, float scale, bool checked,
                    const SampleDraw& draw, std::int64_t first_id) {
  Range range;
  BestLanes best;
  F z_max = set1(-__builtin_inff());
  I words[4] = {};
  I ids = lane_numbers() + set1(static_cast<std::int32_t>(first_id));
  for (std::int64_t k = 0; k < n; k += 4 * kWidth) {
    if constexpr (kGumbel) {
      token_words(draw, static_cast<std::uint32_t>((first_id + k) / 4), words);
    }
    for (int i = 0; i < 4 && k + i * kWidth < n; ++i) {
      const std::int64_t at = k + i * kWidth;
      const int count = static_cast<int>(n - at < kWidth ? n - at : kWidth);
      const F logit = count == kWidth ? load(x + at) : load_n(x + at, count);
      range.add_n(logit, count);
      const F z = logit * set1(scale);
      z_max = max(select(first_lanes(count), z, z_max), z_max);
      const M part = first_lanes(count) & less_equal(set1(kLowest), z);
      best.add(kGumbel ? z + gumbel_of(words[i]) : z, ids, part);
      ids = ids + set1(std::int32_t{kWidth});
    }
  }
  *out = BestToken{};
  out->bad = !checked && (range.largest() >= kInfinityBits || max_lane(z_max) > kHighest);
  float scores[kWidth];
  std::int32_t lane_ids[kWidth];
  store(scores, best.score);
  store(lane_ids, best.id);
  for (int i = 0; i < kWidth; ++i) {
    if (!(scores[i] > -__builtin_inff())) continue;
    const bool better =
        !out->any || scores[i] > out->score || (scores[i] == out->score && lane_ids[i] < out->id);
    if (!better) continue;
    out->any = true;
    out->score = scores[i];
    out->id = lane_ids[i];
  }
}

void best(BestToken* out, const float* x, std::int64_t n, float scale, bool checked,
          const SampleDraw& draw, std::int64_t first_id) {
  if (draw.gumbel) {
    best_of<true>(out, x, n, scale, checked, draw, first_id);
  } else {
    best_of<false>(out, x, n, scale, checked, draw, first_id);
  }
}

constexpr LogprobIsa kTable = {.sums = sums, .gradient = gradient, .best = best};
