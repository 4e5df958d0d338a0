// Integer and 64-bit operations on the vectors of vec_scalar.h, in the same anonymous namespace.
// L holds half as many 64-bit integers as I holds 32-bit ones.

inline I max(I a, I b) {
  return each<I>([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
}
inline I operator*(I a, I b) {  // the low 32 bits
  return each<I>([&](int i) { return wrap(u32(a.v[i]) * u32(b.v[i])); });
}
inline I operator^(I a, I b) {
  return each<I>([&](int i) { return a.v[i] ^ b.v[i]; });
}
inline I round_to_i32(F a) {  // nearest even
  return each<I>([&](int i) {
    const double x = static_cast<double>(a.v[i]);
    if (!(x >= -0x1p31 && x < 0x1p31)) return INT32_MIN;
    return static_cast<std::int32_t>((x + 0x1.8p52) - 0x1.8p52);
  });
}
// By a count per lane in [0, 32); the shift to the right is arithmetic.
inline I shift_left(I a, I count) {
  return each<I>([&](int i) { return wrap(u32(a.v[i]) << count.v[i]); });
}
inline I shift_right(I a, I count) {
  return each<I>([&](int i) { return a.v[i] >> count.v[i]; });
}
// a + b where m, else a
inline I add_where(M m, I a, I b) {
  return each<I>([&](int i) { return m.v[i] ? wrap(u32(a.v[i]) + u32(b.v[i])) : a.v[i]; });
}

struct L {
  std::uint64_t v[kWidth / 2];
};

template <typename Fn>
inline L each_l(Fn fn) {
  L r;
  for (int i = 0; i < kWidth / 2; ++i) r.v[i] = fn(i);
  return r;
}
inline L set1_i64(std::int64_t x) {
  return each_l([=](int) { return static_cast<std::uint64_t>(x); });
}
inline void store(std::int64_t* p, L x) {
  for (int i = 0; i < kWidth / 2; ++i) p[i] = static_cast<std::int64_t>(x.v[i]);
}
inline L operator+(L a, L b) {
  return each_l([&](int i) { return a.v[i] + b.v[i]; });
}
inline L operator&(L a, L b) {
  return each_l([&](int i) { return a.v[i] & b.v[i]; });
}
// 0 where the count is not in [0, 64)
inline L shift_left(L a, L count) {
  return each_l([&](int i) { return count.v[i] < 64 ? a.v[i] << count.v[i] : 0; });
}
inline L shift_right(L a, L count) {  // logical
  return each_l([&](int i) { return count.v[i] < 64 ? a.v[i] >> count.v[i] : 0; });
}
inline std::uint64_t extend(std::int32_t x) {
  return static_cast<std::uint64_t>(static_cast<std::int64_t>(x));
}
// The lower and upper half of the lanes, sign-extended.
inline L low_half(I a) {
  return each_l([&](int i) { return extend(a.v[i]); });
}
inline L high_half(I a) {
  return each_l([&](int i) { return extend(a.v[i + kWidth / 2]); });
}
// The even and the odd lanes, zero-extended.
inline L even_lanes(I a) {
  return each_l([&](int i) { return std::uint64_t{u32(a.v[2 * i])}; });
}
inline L odd_lanes(I a) {
  return each_l([&](int i) { return std::uint64_t{u32(a.v[2 * i + 1])}; });
}
// Product of the lower 32 bits.
inline L multiply_u32(L a, L b) {
  return each_l([&](int i) { return (a.v[i] & 0xffffffffu) * (b.v[i] & 0xffffffffu); });
}
// [low 32 bits of even 0, of odd 0, of even 1, ..], and of the upper 32 bits
inline I join_low(L even, L odd) {
  return each<I>(
      [&](int i) { return wrap(static_cast<std::uint32_t>((i % 2 == 0 ? even : odd).v[i / 2])); });
}
inline I join_high(L even, L odd) {
  return each<I>([&](int i) {
    return wrap(static_cast<std::uint32_t>((i % 2 == 0 ? even : odd).v[i / 2] >> 32));
  });
}

// f32((f64(x) - a) - b)
inline F subtract_f64(F x, double a, double b) {
  return each<F>([&](int i) { return static_cast<float>((static_cast<double>(x.v[i]) - a) - b); });
}

// In every four lanes: x[i].lane[j] = x[j].lane[i]
inline void transpose_fours(I (&x)[4]) {
  for (int block = 0; block < kWidth; block += 4) {
    for (int i = 0; i < 4; ++i) {
      for (int j = 0; j < i; ++j) {
        const std::int32_t t = x[i].v[block + j];
        x[i].v[block + j] = x[j].v[block + i];
        x[j].v[block + i] = t;
      }
    }
  }
}
