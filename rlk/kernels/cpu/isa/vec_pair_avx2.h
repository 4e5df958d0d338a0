// Two vectors at a time from and to memory of either storage type, AVX2. Included inside an
// anonymous namespace after the vectors; what pairs are for stands in vec_pair.h.

struct P {
  F a, b;
};

// fma(a, b, -c)
inline F fms(F a, F b, F c) { return {_mm256_fmsub_ps(a.v, b.v, c.v)}; }
inline bool any_nan(P x) {
  return _mm256_movemask_ps(_mm256_cmp_ps(x.a.v, x.b.v, _CMP_UNORD_Q)) != 0;
}

// bf16: a has the even elements, b the odd ones.
inline P split(__m256i pairs) {
  return {{_mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16))},
          {_mm256_castsi256_ps(
              _mm256_and_si256(pairs, _mm256_set1_epi32(static_cast<int>(0xffff0000u))))}};
}
inline P load_pair(const std::uint16_t* p) {
  return split(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
inline P load_pair_n(const std::uint16_t* p, int n) {
  alignas(32) std::uint16_t t[16] = {};
  for (int i = 0; i < n; ++i) t[i] = p[i];
  return split(_mm256_load_si256(reinterpret_cast<const __m256i*>(t)));
}
// The upper 16 bits are bf16(x) of a number.
inline __m256i rounded(F x) {
  const __m256i u = _mm256_castps_si256(x.v);
  const __m256i odd = _mm256_srai_epi32(_mm256_slli_epi32(u, 15), 31);
  return _mm256_sub_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7fff)), odd);
}
inline __m256i join(P x) {
  return _mm256_blend_epi16(_mm256_srli_epi32(rounded(x.a), 16), rounded(x.b), 0xaa);
}
inline void store_numbers(std::uint16_t* p, P x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), join(x));
}
inline void store_numbers_n(std::uint16_t* p, P x, int n) {
  alignas(32) std::uint16_t t[16];
  _mm256_store_si256(reinterpret_cast<__m256i*>(t), join(x));
  for (int i = 0; i < n; ++i) p[i] = t[i];
}

// [a0, b0, a1, b1, ..] and back
inline P interleave(P x) {
  const __m256 low = _mm256_unpacklo_ps(x.a.v, x.b.v);  // a0 b0 a1 b1 | a4 b4 a5 b5
  const __m256 high = _mm256_unpackhi_ps(x.a.v, x.b.v);
  return {{_mm256_permute2f128_ps(low, high, 0x20)}, {_mm256_permute2f128_ps(low, high, 0x31)}};
}
inline P deinterleave(P x) {
  const auto halves = [](__m256 v) {  // swaps the two middle quarters
    return F{_mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(v), 0xd8))};
  };
  return {halves(_mm256_shuffle_ps(x.a.v, x.b.v, 0x88)),
          halves(_mm256_shuffle_ps(x.a.v, x.b.v, 0xdd))};
}
