// Vectors from and to memory of either storage type: bf16 as its bits, or f32. Included after the
// vectors.

inline F load_value(const std::uint16_t* p) { return load_bf16(p); }
inline F load_value(const float* p) { return load(p); }
inline F load_value_n(const std::uint16_t* p, int n) { return load_bf16_n(p, n); }
inline F load_value_n(const float* p, int n) { return load_n(p, n); }

inline F canonical_nan(F x) {
  return select(is_nan(x), from_bits(set1(std::int32_t{0x7fc00000})), x);
}
inline void store_value(std::uint16_t* p, F x) { store_bf16(p, x); }
inline void store_value(float* p, F x) { store(p, canonical_nan(x)); }
inline void store_value_n(std::uint16_t* p, F x, int n) { store_bf16_n(p, x, n); }
inline void store_value_n(float* p, F x, int n) { store_n(p, canonical_nan(x), n); }

// The rounding to storage, as f32. round_value<T>(x) for numbers and NaN alike.
template <typename T>
inline F round_value(F x);
template <>
inline F round_value<std::uint16_t>(F x) {
  return round_bf16(x);
}
template <>
inline F round_value<float>(F x) {
  return canonical_nan(x);
}
