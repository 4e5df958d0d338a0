// Two vectors at a time from and to memory of either storage type, in plain C++. Included inside an
// anonymous namespace after the vectors; what pairs are for stands in vec_pair.h.

struct P {
  F a, b;
};

// fma(a, b, -c)
inline F fms(F a, F b, F c) { return fma(a, b, neg(c)); }
inline bool any_nan(P x) { return any(is_nan(x.a) | is_nan(x.b)); }

// bf16: a has the even elements, b the odd ones.
inline P load_pair_n(const std::uint16_t* p, int n) {
  const auto at = [=](int i) { return i < n ? float_of(wrap(std::uint32_t{p[i]} << 16)) : 0.0f; };
  return {each<F>([&](int i) { return at(2 * i); }), each<F>([&](int i) { return at(2 * i + 1); })};
}
inline P load_pair(const std::uint16_t* p) { return load_pair_n(p, 2 * kWidth); }
inline void store_numbers_n(std::uint16_t* p, P x, int n) {
  const P r = {round_bf16(x.a), round_bf16(x.b)};
  for (int i = 0; i < n; ++i) {
    p[i] = static_cast<std::uint16_t>(u32(bits_of((i % 2 ? r.b : r.a).v[i / 2])) >> 16);
  }
}
inline void store_numbers(std::uint16_t* p, P x) { store_numbers_n(p, x, 2 * kWidth); }

// [a0, b0, a1, b1, ..] and back
inline P interleave(P x) {
  const auto at = [&](int i) { return (i % 2 ? x.b : x.a).v[i / 2]; };
  return {each<F>(at), each<F>([&](int i) { return at(kWidth + i); })};
}
inline P deinterleave(P x) {
  const auto at = [&](int i) { return (i < kWidth ? x.a : x.b).v[i % kWidth]; };
  return {each<F>([&](int i) { return at(2 * i); }), each<F>([&](int i) { return at(2 * i + 1); })};
}
