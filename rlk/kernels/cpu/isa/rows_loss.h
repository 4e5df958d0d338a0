// Losses on arrays of tokens; part of rows_body.h.

inline F ratio_of(F logp, F old) { return exp(logp - old); }

struct KlTerm {
  F value, slope;
};

inline KlTerm kl_term(int kl_type, F logp, F ref) {
  const F one = set1(1.0f);
  const F b = logp - ref;
  if (kl_type == 1) return {b, one};
  if (kl_type == 2) return {set1(0.5f) * (b * b), b};
  if (kl_type == 3) {
    const F e = exp(neg(b));
    return {(e - one) + b, one - e};
  }
  return {zero(), zero()};
}

// Tokens that count; a NaN weight does. A null weight masks nothing.
inline M active_lanes(const float* weight, std::int64_t t, int count) {
  return weight == nullptr ? first_lanes(kWidth) : !equal(load_n(weight + t, count), zero());
}

// An optional output.
inline void store_optional(float* out, std::int64_t t, M active, F x, int count) {
  if (out != nullptr) store_n(out + t, select(active, x, zero()), count);
}

// Calls token(t, count) for the vectors of [begin, end); it returns the number that has to be
// finite in each lane. Returns the first element that is not, or -1.
template <typename Token>
inline std::int64_t for_tokens(std::int64_t begin, std::int64_t end, const Token& token) {
  const F infinity = set1(__builtin_inff());
  std::int64_t bad = -1;
  for (std::int64_t t = begin; t < end; t += kWidth) {
    const int count = static_cast<int>(end - t < kWidth ? end - t : kWidth);
    const F x = token(t, count);
    if (bad >= 0 || all(less(abs(x), infinity) | !first_lanes(count))) continue;
    float lane[kWidth];
    store(lane, x);
    int i = 0;
    while (__builtin_fabsf(lane[i]) < __builtin_inff()) ++i;
    bad = t + i;
  }
  return bad;
}

std::int64_t ratio(const RatioRows& c, std::int64_t begin, std::int64_t end) {
  return for_tokens(begin, end, [&](std::int64_t t, int count) {
    const M active = active_lanes(c.weight, t, count);
    const F r = ratio_of(load_n(c.logp + t, count), load_n(c.old + t, count));
    store_optional(c.ratio, t, active, r, count);
    return select(active, r, zero());
  });
}

std::int64_t kl(const KlRows& c, std::int64_t begin, std::int64_t end) {
  return for_tokens(begin, end, [&](std::int64_t t, int count) {
    const M active = active_lanes(c.weight, t, count);
    const KlTerm term = kl_term(c.kl_type, load_n(c.logp + t, count), load_n(c.ref + t, count));
    store_optional(c.kl, t, active, term.value, count);
    store_optional(c.slope, t, active, term.slope, count);
    return select(active, term.value, zero());
  });
}

// min(max(x, lo), hi) as std::min and std::max define them: x where it is NaN.
inline F clamp(F x, F lo, F hi) {
  const F above = select(less(x, lo), lo, x);
  return select(less(hi, above), hi, above);
}

std::int64_t grpo_loss(const GrpoLossRows& c, std::int64_t begin, std::int64_t end) {
  const F lo = set1(c.lo), hi = set1(c.hi);
  return for_tokens(begin, end, [&](std::int64_t t, int count) {
    const F weight = load_n(c.weight + t, count);
    const M active = active_lanes(c.weight, t, count);
    const F logp = load_n(c.logp + t, count);
    const F a = load_n(c.advantage + t, count);
    const F r = ratio_of(logp, load_n(c.old + t, count));
    const KlTerm kl = kl_term(c.kl_type, logp, c.kl_type == 0 ? logp : load_n(c.ref + t, count));
    const M clipped = (less(zero(), a) & less(hi, r)) | (less(a, zero()) & less(r, lo));
    const F pg = select(clipped, zero(), neg(a * r));
    const F g = fma(set1(c.beta), kl.slope, pg) * weight;
    const F plain = r * a;
    const F bounded = clamp(r, lo, hi) * a;
    store_optional(c.g, t, active, g, count);
    store_optional(c.pg_loss, t, active, neg(select(less(bounded, plain), bounded, plain)), count);
    store_optional(c.kl, t, active, kl.value, count);
    store_optional(c.ratio, t, active, r, count);
    return select(active, g, zero());
  });
}

std::int64_t value_loss(const ValueLossRows& c, std::int64_t begin, std::int64_t end) {
  const F clip = set1(c.clip);
  return for_tokens(begin, end, [&](std::int64_t t, int count) {
    const F weight = load_n(c.weight + t, count);
    const M active = active_lanes(c.weight, t, count);
    const F v = load_n(c.value + t, count);
    const F old = load_n(c.old_value + t, count);
    const F target = load_n(c.returns + t, count);
    const F d = v - target;
    const F x = clamp(v, old - clip, old + clip) - target;
    const M held = less(d * d, x * x);
    const F g = (set1(c.value_coef) * select(held, zero(), d)) * weight;
    store_optional(c.g_value, t, active, g, count);
    store_optional(c.v_loss, t, active, set1(0.5f) * select(held, x * x, d * d), count);
    store_optional(c.g_entropy, t, active, neg(set1(c.entropy_coef) * weight), count);
    return select(active, g, zero());
  });
}
