// Integer and 64-bit operations on the vectors of vec_avx512.h, in the same anonymous namespace.
// L holds half as many 64-bit integers as I holds 32-bit ones.

inline I max(I a, I b) { return {_mm512_max_epi32(a.v, b.v)}; }
inline I operator*(I a, I b) { return {_mm512_mullo_epi32(a.v, b.v)}; }  // the low 32 bits
inline I operator^(I a, I b) { return {_mm512_xor_si512(a.v, b.v)}; }
inline I round_to_i32(F a) { return {_mm512_cvtps_epi32(a.v)}; }  // nearest even
// By a count per lane in [0, 32); the shift to the right is arithmetic.
inline I shift_left(I a, I count) { return {_mm512_sllv_epi32(a.v, count.v)}; }
inline I shift_right(I a, I count) { return {_mm512_srav_epi32(a.v, count.v)}; }
// a + b where m, else a
inline I add_where(M m, I a, I b) { return {_mm512_mask_add_epi32(a.v, m.v, a.v, b.v)}; }

struct L {
  __m512i v;
};

inline L set1_i64(std::int64_t x) { return {_mm512_set1_epi64(x)}; }
inline void store(std::int64_t* p, L x) { _mm512_storeu_si512(p, x.v); }
inline L operator+(L a, L b) { return {_mm512_add_epi64(a.v, b.v)}; }
inline L operator&(L a, L b) { return {_mm512_and_si512(a.v, b.v)}; }
// 0 where the count is not in [0, 64)
inline L shift_left(L a, L count) { return {_mm512_sllv_epi64(a.v, count.v)}; }
inline L shift_right(L a, L count) { return {_mm512_srlv_epi64(a.v, count.v)}; }  // logical
// The lower and upper half of the lanes, sign-extended.
inline L low_half(I a) { return {_mm512_cvtepi32_epi64(_mm512_castsi512_si256(a.v))}; }
inline L high_half(I a) { return {_mm512_cvtepi32_epi64(_mm512_extracti64x4_epi64(a.v, 1))}; }
// The even and the odd lanes, zero-extended.
inline L even_lanes(I a) { return {_mm512_and_si512(a.v, _mm512_set1_epi64(0xffffffff))}; }
inline L odd_lanes(I a) { return {_mm512_srli_epi64(a.v, 32)}; }
// Product of the lower 32 bits.
inline L multiply_u32(L a, L b) { return {_mm512_mul_epu32(a.v, b.v)}; }
// [low 32 bits of even 0, of odd 0, of even 1, ..], and of the upper 32 bits
inline I join_low(L even, L odd) {
  return {_mm512_mask_blend_epi32(0xaaaa, even.v, _mm512_slli_epi64(odd.v, 32))};
}
inline I join_high(L even, L odd) {
  return {_mm512_mask_blend_epi32(0xaaaa, _mm512_srli_epi64(even.v, 32), odd.v)};
}

// f32((f64(x) - a) - b)
inline F subtract_f64(F x, double a, double b) {
  const __m512d va = _mm512_set1_pd(a), vb = _mm512_set1_pd(b);
  const __m512d lo = _mm512_cvtps_pd(_mm512_castps512_ps256(x.v));
  const __m512d hi = _mm512_cvtps_pd(_mm512_extractf32x8_ps(x.v, 1));
  const __m256 r0 = _mm512_cvtpd_ps(_mm512_sub_pd(_mm512_sub_pd(lo, va), vb));
  const __m256 r1 = _mm512_cvtpd_ps(_mm512_sub_pd(_mm512_sub_pd(hi, va), vb));
  return {_mm512_insertf32x8(_mm512_castps256_ps512(r0), r1, 1)};
}

// In every four lanes: x[i].lane[j] = x[j].lane[i]
inline void transpose_fours(I (&x)[4]) {
  const __m512i a = _mm512_unpacklo_epi32(x[0].v, x[1].v);
  const __m512i b = _mm512_unpackhi_epi32(x[0].v, x[1].v);
  const __m512i c = _mm512_unpacklo_epi32(x[2].v, x[3].v);
  const __m512i d = _mm512_unpackhi_epi32(x[2].v, x[3].v);
  x[0].v = _mm512_unpacklo_epi64(a, c);
  x[1].v = _mm512_unpackhi_epi64(a, c);
  x[2].v = _mm512_unpacklo_epi64(b, d);
  x[3].v = _mm512_unpackhi_epi64(b, d);
}
