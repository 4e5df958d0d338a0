// Vectors of 16 f32 for AVX-512 (F, BW, DQ, VL). Included inside an anonymous namespace of a file
// that is compiled for this instruction set alone, so that nothing of it can leak elsewhere.
// Every operation is the IEEE operation of its name, lane by lane.

constexpr int kWidth = 16;

struct F {
  __m512 v;
};
struct I {
  __m512i v;
};
struct M {
  __mmask16 v;
};

inline __mmask16 first(int n) { return static_cast<__mmask16>((1u << n) - 1u); }

inline F zero() { return {_mm512_setzero_ps()}; }
inline F set1(float x) { return {_mm512_set1_ps(x)}; }
inline F load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline F load_n(const float* p, int n) { return {_mm512_maskz_loadu_ps(first(n), p)}; }
inline void store(float* p, F x) { _mm512_storeu_ps(p, x.v); }
inline void store_n(float* p, F x, int n) { _mm512_mask_storeu_ps(p, first(n), x.v); }

inline F operator+(F a, F b) { return {_mm512_add_ps(a.v, b.v)}; }
inline F operator-(F a, F b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline F operator*(F a, F b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline F operator/(F a, F b) { return {_mm512_div_ps(a.v, b.v)}; }
inline F fma(F a, F b, F c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
inline F sqrt(F a) { return {_mm512_sqrt_ps(a.v)}; }
inline F neg(F a) { return {_mm512_xor_ps(a.v, _mm512_set1_ps(-0.0f))}; }
inline F abs(F a) { return {_mm512_andnot_ps(_mm512_set1_ps(-0.0f), a.v)}; }
// b where either is NaN
inline F max(F a, F b) { return {_mm512_max_ps(a.v, b.v)}; }
inline F min(F a, F b) { return {_mm512_min_ps(a.v, b.v)}; }

inline M less(F a, F b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ)}; }
inline M less_equal(F a, F b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_LE_OQ)}; }
inline M equal(F a, F b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_EQ_OQ)}; }
inline M is_nan(F a) { return {_mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q)}; }
inline M operator&(M a, M b) { return {static_cast<__mmask16>(a.v & b.v)}; }
inline M operator|(M a, M b) { return {static_cast<__mmask16>(a.v | b.v)}; }
inline M operator!(M a) { return {static_cast<__mmask16>(~a.v)}; }
inline bool any(M m) { return m.v != 0; }
inline bool all(M m) { return m.v == 0xffff; }
inline M first_lanes(int n) { return {first(n)}; }
// a where m, else b
inline F select(M m, F a, F b) { return {_mm512_mask_blend_ps(m.v, b.v, a.v)}; }
inline I select(M m, I a, I b) { return {_mm512_mask_blend_epi32(m.v, b.v, a.v)}; }

inline I set1(std::int32_t x) { return {_mm512_set1_epi32(x)}; }
inline I load(const std::int32_t* p) { return {_mm512_loadu_si512(p)}; }
inline void store(std::int32_t* p, I x) { _mm512_storeu_si512(p, x.v); }
inline I bits(F a) { return {_mm512_castps_si512(a.v)}; }
inline F from_bits(I a) { return {_mm512_castsi512_ps(a.v)}; }
inline I operator+(I a, I b) { return {_mm512_add_epi32(a.v, b.v)}; }
inline I operator-(I a, I b) { return {_mm512_sub_epi32(a.v, b.v)}; }
inline I operator&(I a, I b) { return {_mm512_and_si512(a.v, b.v)}; }
inline I operator|(I a, I b) { return {_mm512_or_si512(a.v, b.v)}; }
template <int k>
inline I shift_left(I a) {
  return {_mm512_slli_epi32(a.v, k)};
}
template <int k>
inline I shift_right(I a) {  // arithmetic
  return {_mm512_srai_epi32(a.v, k)};
}
template <int k>
inline I shift_right_logical(I a) {
  return {_mm512_srli_epi32(a.v, k)};
}
inline M equal(I a, I b) { return {_mm512_cmpeq_epi32_mask(a.v, b.v)}; }
inline M less(I a, I b) { return {_mm512_cmplt_epi32_mask(a.v, b.v)}; }
inline F to_f32(I a) { return {_mm512_cvtepi32_ps(a.v)}; }   // nearest even
inline I to_i32(F a) { return {_mm512_cvttps_epi32(a.v)}; }  // exact for integers in range

inline F widen(__m256i h) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16))};
}
inline F load_bf16(const std::uint16_t* p) {
  return widen(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
inline F load_bf16_n(const std::uint16_t* p, int n) {
  return widen(_mm256_maskz_loadu_epi16(first(n), p));
}
// f32 whose upper 16 bits are bf16(x): nearest even, NaN to 0x7fc0
inline F round_bf16(F x) {
  const __m512i u = _mm512_castps_si512(x.v);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
  __m512i r = _mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  r = _mm512_and_si512(r, _mm512_set1_epi32(static_cast<int>(0xffff0000u)));
  r = _mm512_mask_mov_epi32(r, is_nan(x).v, _mm512_set1_epi32(0x7fc00000));
  return {_mm512_castsi512_ps(r)};
}
// The same for numbers: NaN may come out as anything.
inline F round_bf16_number(F x) {
  const __m512i u = _mm512_castps_si512(x.v);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
  const __m512i r = _mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  return {_mm512_castsi512_ps(
      _mm512_and_si512(r, _mm512_set1_epi32(static_cast<int>(0xffff0000u))))};
}
inline __m256i narrow(F x) {
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_castps_si512(round_bf16(x).v), 16));
}
inline void store_bf16(std::uint16_t* p, F x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), narrow(x));
}
inline void store_bf16_n(std::uint16_t* p, F x, int n) {
  _mm256_mask_storeu_epi16(p, first(n), narrow(x));
}

// [a0+a1, a2+a3, .., b0+b1, b2+b3, ..]: one level of the neighbour tree
inline F pair_add(F a, F b) {
  const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
  return {_mm512_add_ps(_mm512_permutex2var_ps(a.v, even, b.v),
                        _mm512_permutex2var_ps(a.v, odd, b.v))};
}
inline float lane0(F a) { return _mm512_cvtss_f32(a.v); }
// Largest lane; the order does not matter for a maximum of numbers.
inline float max_lane(F a) { return _mm512_reduce_max_ps(a.v); }

// Pairs of neighbouring bf16 as they lie in memory, one pair per lane; only the first n are read.
inline I load_pairs(const std::uint16_t* p) { return {_mm512_loadu_si512(p)}; }
inline I load_pairs_n(const std::uint16_t* p, int n) {
  return {_mm512_maskz_loadu_epi32(first(n), p)};
}
// x[i].lane[j] = x[j].lane[i], in place
inline void transpose(I (&x)[kWidth]) {
  __m512i a[16], b[16];
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    a[i] = _mm512_unpacklo_epi32(x[i].v, x[i + 1].v);
    a[i + 1] = _mm512_unpackhi_epi32(x[i].v, x[i + 1].v);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    b[i] = _mm512_unpacklo_epi64(a[i], a[i + 2]);
    b[i + 1] = _mm512_unpackhi_epi64(a[i], a[i + 2]);
    b[i + 2] = _mm512_unpacklo_epi64(a[i + 1], a[i + 3]);
    b[i + 3] = _mm512_unpackhi_epi64(a[i + 1], a[i + 3]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {  // now 4x4 blocks of 128 bits
    a[i] = _mm512_shuffle_i32x4(b[i], b[i + 4], 0x88);
    a[i + 4] = _mm512_shuffle_i32x4(b[i], b[i + 4], 0xdd);
    a[i + 8] = _mm512_shuffle_i32x4(b[i + 8], b[i + 12], 0x88);
    a[i + 12] = _mm512_shuffle_i32x4(b[i + 8], b[i + 12], 0xdd);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    x[i].v = _mm512_shuffle_i32x4(a[i], a[i + 8], 0x88);
    x[i + 8].v = _mm512_shuffle_i32x4(a[i], a[i + 8], 0xdd);
    x[i + 4].v = _mm512_shuffle_i32x4(a[i + 4], a[i + 12], 0x88);
    x[i + 12].v = _mm512_shuffle_i32x4(a[i + 4], a[i + 12], 0xdd);
  }
}
