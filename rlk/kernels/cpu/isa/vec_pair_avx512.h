// Two vectors at a time from and to memory of either storage type, AVX-512. Included inside an
// anonymous namespace after the vectors; what pairs are for stands in vec_pair.h.

struct P {
  F a, b;
};

// fma(a, b, -c)
inline F fms(F a, F b, F c) { return {_mm512_fmsub_ps(a.v, b.v, c.v)}; }
inline bool any_nan(P x) { return _mm512_cmp_ps_mask(x.a.v, x.b.v, _CMP_UNORD_Q) != 0; }

// bf16: a has the even elements, b the odd ones.
inline P split(__m512i pairs) {
  return {{_mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16))},
          {_mm512_castsi512_ps(
              _mm512_and_si512(pairs, _mm512_set1_epi32(static_cast<int>(0xffff0000u))))}};
}
inline P load_pair(const std::uint16_t* p) { return split(_mm512_loadu_si512(p)); }
inline P load_pair_n(const std::uint16_t* p, int n) {
  return split(_mm512_maskz_loadu_epi16(static_cast<__mmask32>((std::uint64_t{1} << n) - 1), p));
}
// The upper 16 bits are bf16(x) of a number.
inline __m512i rounded(F x) {
  const __m512i u = _mm512_castps_si512(x.v);
  const __mmask16 odd = _mm512_test_epi32_mask(u, _mm512_set1_epi32(0x10000));
  return _mm512_add_epi32(
      u, _mm512_mask_blend_epi32(odd, _mm512_set1_epi32(0x7fff), _mm512_set1_epi32(0x8000)));
}
inline __m512i join(P x) {
  return _mm512_mask_blend_epi16(0xaaaaaaaau, _mm512_srli_epi32(rounded(x.a), 16), rounded(x.b));
}
inline void store_numbers(std::uint16_t* p, P x) { _mm512_storeu_si512(p, join(x)); }
inline void store_numbers_n(std::uint16_t* p, P x, int n) {
  _mm512_mask_storeu_epi16(p, static_cast<__mmask32>((std::uint64_t{1} << n) - 1), join(x));
}

// [a0, b0, a1, b1, ..] and back
inline P interleave(P x) {
  const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
  return {{_mm512_permutex2var_ps(x.a.v, low, x.b.v)},
          {_mm512_permutex2var_ps(x.a.v, high, x.b.v)}};
}
inline P deinterleave(P x) {
  const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
  return {{_mm512_permutex2var_ps(x.a.v, even, x.b.v)},
          {_mm512_permutex2var_ps(x.a.v, odd, x.b.v)}};
}
