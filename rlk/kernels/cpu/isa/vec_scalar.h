// Vectors of 8 f32 in plain C++, for a CPU without AVX2. Included inside an anonymous namespace.
// fma is the correctly rounded one of the C library: slow without hardware, never wrong.

constexpr int kWidth = 8;

struct F {
  float v[kWidth];
};
struct I {
  std::int32_t v[kWidth];
};
struct M {
  bool v[kWidth];
};

template <typename R, typename Fn>
inline R each(Fn fn) {
  R r;
  for (int i = 0; i < kWidth; ++i) r.v[i] = fn(i);
  return r;
}
inline std::int32_t bits_of(float x) { return __builtin_bit_cast(std::int32_t, x); }
inline float float_of(std::int32_t x) { return __builtin_bit_cast(float, x); }
inline std::int32_t wrap(std::uint32_t x) { return static_cast<std::int32_t>(x); }
inline std::uint32_t u32(std::int32_t x) { return static_cast<std::uint32_t>(x); }

inline F zero() { return each<F>([](int) { return 0.0f; }); }
inline F set1(float x) { return each<F>([=](int) { return x; }); }
inline F load(const float* p) { return each<F>([=](int i) { return p[i]; }); }
inline F load_n(const float* p, int n) {
  return each<F>([=](int i) { return i < n ? p[i] : 0.0f; });
}
inline void store_n(float* p, F x, int n) {
  for (int i = 0; i < n; ++i) p[i] = x.v[i];
}
inline void store(float* p, F x) { store_n(p, x, kWidth); }

inline F operator+(F a, F b) { return each<F>([&](int i) { return a.v[i] + b.v[i]; }); }
inline F operator-(F a, F b) { return each<F>([&](int i) { return a.v[i] - b.v[i]; }); }
inline F operator*(F a, F b) { return each<F>([&](int i) { return a.v[i] * b.v[i]; }); }
inline F operator/(F a, F b) { return each<F>([&](int i) { return a.v[i] / b.v[i]; }); }
inline F fma(F a, F b, F c) {
  return each<F>([&](int i) { return __builtin_fmaf(a.v[i], b.v[i], c.v[i]); });
}
inline F sqrt(F a) { return each<F>([&](int i) { return __builtin_sqrtf(a.v[i]); }); }
inline F neg(F a) { return each<F>([&](int i) { return -a.v[i]; }); }
inline F abs(F a) { return each<F>([&](int i) { return float_of(bits_of(a.v[i]) & 0x7fffffff); }); }
// b where either is NaN
inline F max(F a, F b) { return each<F>([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; }); }
inline F min(F a, F b) { return each<F>([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; }); }

inline M less(F a, F b) { return each<M>([&](int i) { return a.v[i] < b.v[i]; }); }
inline M less_equal(F a, F b) { return each<M>([&](int i) { return a.v[i] <= b.v[i]; }); }
inline M equal(F a, F b) { return each<M>([&](int i) { return a.v[i] == b.v[i]; }); }
inline M is_nan(F a) { return each<M>([&](int i) { return a.v[i] != a.v[i]; }); }
inline M operator&(M a, M b) { return each<M>([&](int i) { return a.v[i] && b.v[i]; }); }
inline M operator|(M a, M b) { return each<M>([&](int i) { return a.v[i] || b.v[i]; }); }
inline M operator!(M a) { return each<M>([&](int i) { return !a.v[i]; }); }
inline bool any(M m) {
  for (bool b : m.v) {
    if (b) return true;
  }
  return false;
}
inline bool all(M m) { return !any(!m); }
inline M first_lanes(int n) { return each<M>([=](int i) { return i < n; }); }
// a where m, else b
inline F select(M m, F a, F b) { return each<F>([&](int i) { return m.v[i] ? a.v[i] : b.v[i]; }); }
inline I select(M m, I a, I b) { return each<I>([&](int i) { return m.v[i] ? a.v[i] : b.v[i]; }); }

inline I set1(std::int32_t x) { return each<I>([=](int) { return x; }); }
inline I load(const std::int32_t* p) { return each<I>([=](int i) { return p[i]; }); }
inline void store(std::int32_t* p, I x) {
  for (int i = 0; i < kWidth; ++i) p[i] = x.v[i];
}
inline I bits(F a) { return each<I>([&](int i) { return bits_of(a.v[i]); }); }
inline F from_bits(I a) { return each<F>([&](int i) { return float_of(a.v[i]); }); }
inline I operator+(I a, I b) {
  return each<I>([&](int i) { return wrap(u32(a.v[i]) + u32(b.v[i])); });
}
inline I operator-(I a, I b) {
  return each<I>([&](int i) { return wrap(u32(a.v[i]) - u32(b.v[i])); });
}
inline I operator&(I a, I b) { return each<I>([&](int i) { return a.v[i] & b.v[i]; }); }
inline I operator|(I a, I b) { return each<I>([&](int i) { return a.v[i] | b.v[i]; }); }
template <int k>
inline I shift_left(I a) {
  return each<I>([&](int i) { return wrap(u32(a.v[i]) << k); });
}
template <int k>
inline I shift_right(I a) {  // arithmetic
  return each<I>([&](int i) { return a.v[i] >> k; });
}
template <int k>
inline I shift_right_logical(I a) {
  return each<I>([&](int i) { return wrap(u32(a.v[i]) >> k); });
}
inline M equal(I a, I b) { return each<M>([&](int i) { return a.v[i] == b.v[i]; }); }
inline M less(I a, I b) { return each<M>([&](int i) { return a.v[i] < b.v[i]; }); }
inline F to_f32(I a) { return each<F>([&](int i) { return static_cast<float>(a.v[i]); }); }
// Exact for integers in range; out of range gives INT_MIN, as the vector instruction does.
inline I to_i32(F a) {
  return each<I>([&](int i) {
    return a.v[i] >= -0x1p31f && a.v[i] < 0x1p31f ? static_cast<std::int32_t>(a.v[i]) : INT32_MIN;
  });
}

inline F load_bf16_n(const std::uint16_t* p, int n) {
  return each<F>([=](int i) { return i < n ? float_of(wrap(std::uint32_t{p[i]} << 16)) : 0.0f; });
}
inline F load_bf16(const std::uint16_t* p) { return load_bf16_n(p, kWidth); }
// f32 whose upper 16 bits are bf16(x): nearest even, NaN to 0x7fc0
inline F round_bf16(F x) {
  return each<F>([&](int i) {
    if (x.v[i] != x.v[i]) return float_of(0x7fc00000);
    const std::uint32_t u = u32(bits_of(x.v[i]));
    return float_of(wrap((u + 0x7fff + ((u >> 16) & 1)) & 0xffff0000u));
  });
}
// The same for numbers: NaN may come out as anything.
inline F round_bf16_number(F x) { return round_bf16(x); }
inline void store_bf16_n(std::uint16_t* p, F x, int n) {
  const F r = round_bf16(x);
  for (int i = 0; i < n; ++i) p[i] = static_cast<std::uint16_t>(u32(bits_of(r.v[i])) >> 16);
}
inline void store_bf16(std::uint16_t* p, F x) { store_bf16_n(p, x, kWidth); }

// [a0+a1, a2+a3, .., b0+b1, b2+b3, ..]: one level of the neighbour tree
inline F pair_add(F a, F b) {
  return each<F>([&](int i) {
    const float* x = i < kWidth / 2 ? a.v : b.v;
    const int j = 2 * (i % (kWidth / 2));
    return x[j] + x[j + 1];
  });
}
inline float lane0(F a) { return a.v[0]; }
// Largest lane; the order does not matter for a maximum of numbers.
inline float max_lane(F a) {
  float m = a.v[0];
  for (float x : a.v) m = x > m ? x : m;
  return m;
}

// Pairs of neighbouring bf16 as they lie in memory, one pair per lane; only the first n are read.
inline I load_pairs_n(const std::uint16_t* p, int n) {
  return each<I>([=](int i) {
    return i < n ? wrap(std::uint32_t{p[2 * i + 1]} << 16 | p[2 * i]) : std::int32_t{0};
  });
}
inline I load_pairs(const std::uint16_t* p) { return load_pairs_n(p, kWidth); }
// x[i].lane[j] = x[j].lane[i], in place
inline void transpose(I (&x)[kWidth]) {
  for (int i = 0; i < kWidth; ++i) {
    for (int j = 0; j < i; ++j) {
      const std::int32_t t = x[i].v[j];
      x[i].v[j] = x[j].v[i];
      x[j].v[i] = t;
    }
  }
}
