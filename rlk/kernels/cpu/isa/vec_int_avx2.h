// Integer and 64-bit operations on the vectors of vec_avx2.h, in the same anonymous namespace.
// L holds half as many 64-bit integers as I holds 32-bit ones.

inline I max(I a, I b) { return {_mm256_max_epi32(a.v, b.v)}; }
inline I operator*(I a, I b) { return {_mm256_mullo_epi32(a.v, b.v)}; }  // the low 32 bits
inline I operator^(I a, I b) { return {_mm256_xor_si256(a.v, b.v)}; }
inline I round_to_i32(F a) { return {_mm256_cvtps_epi32(a.v)}; }  // nearest even
// By a count per lane in [0, 32); the shift to the right is arithmetic.
inline I shift_left(I a, I count) { return {_mm256_sllv_epi32(a.v, count.v)}; }
inline I shift_right(I a, I count) { return {_mm256_srav_epi32(a.v, count.v)}; }
// a + b where m, else a
inline I add_where(M m, I a, I b) { return a + (b & I{_mm256_castps_si256(m.v)}); }

struct L {
  __m256i v;
};

inline L set1_i64(std::int64_t x) { return {_mm256_set1_epi64x(x)}; }
inline void store(std::int64_t* p, L x) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), x.v); }
inline L operator+(L a, L b) { return {_mm256_add_epi64(a.v, b.v)}; }
inline L operator&(L a, L b) { return {_mm256_and_si256(a.v, b.v)}; }
// 0 where the count is not in [0, 64)
inline L shift_left(L a, L count) { return {_mm256_sllv_epi64(a.v, count.v)}; }
inline L shift_right(L a, L count) { return {_mm256_srlv_epi64(a.v, count.v)}; }  // logical
// The lower and upper half of the lanes, sign-extended.
inline L low_half(I a) { return {_mm256_cvtepi32_epi64(_mm256_castsi256_si128(a.v))}; }
inline L high_half(I a) { return {_mm256_cvtepi32_epi64(_mm256_extracti128_si256(a.v, 1))}; }
// The even and the odd lanes, zero-extended.
inline L even_lanes(I a) { return {_mm256_and_si256(a.v, _mm256_set1_epi64x(0xffffffff))}; }
inline L odd_lanes(I a) { return {_mm256_srli_epi64(a.v, 32)}; }
// Product of the lower 32 bits.
inline L multiply_u32(L a, L b) { return {_mm256_mul_epu32(a.v, b.v)}; }
// [low 32 bits of even 0, of odd 0, of even 1, ..], and of the upper 32 bits
inline I join_low(L even, L odd) {
  return {_mm256_blend_epi32(even.v, _mm256_slli_epi64(odd.v, 32), 0xaa)};
}
inline I join_high(L even, L odd) {
  return {_mm256_blend_epi32(_mm256_srli_epi64(even.v, 32), odd.v, 0xaa)};
}

// f32((f64(x) - a) - b)
inline F subtract_f64(F x, double a, double b) {
  const __m256d va = _mm256_set1_pd(a), vb = _mm256_set1_pd(b);
  const __m256d lo = _mm256_cvtps_pd(_mm256_castps256_ps128(x.v));
  const __m256d hi = _mm256_cvtps_pd(_mm256_extractf128_ps(x.v, 1));
  const __m128 r0 = _mm256_cvtpd_ps(_mm256_sub_pd(_mm256_sub_pd(lo, va), vb));
  const __m128 r1 = _mm256_cvtpd_ps(_mm256_sub_pd(_mm256_sub_pd(hi, va), vb));
  return {_mm256_insertf128_ps(_mm256_castps128_ps256(r0), r1, 1)};
}

// In every four lanes: x[i].lane[j] = x[j].lane[i]
inline void transpose_fours(I (&x)[4]) {
  const __m256i a = _mm256_unpacklo_epi32(x[0].v, x[1].v);
  const __m256i b = _mm256_unpackhi_epi32(x[0].v, x[1].v);
  const __m256i c = _mm256_unpacklo_epi32(x[2].v, x[3].v);
  const __m256i d = _mm256_unpackhi_epi32(x[2].v, x[3].v);
  x[0].v = _mm256_unpacklo_epi64(a, c);
  x[1].v = _mm256_unpackhi_epi64(a, c);
  x[2].v = _mm256_unpacklo_epi64(b, d);
  x[3].v = _mm256_unpackhi_epi64(b, d);
}
