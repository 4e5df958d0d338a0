// Vectors of 8 f32 for AVX2 with FMA. Included inside an anonymous namespace of a file that is
// compiled for this instruction set alone, so that nothing of it can leak elsewhere.
// Every operation is the IEEE operation of its name, lane by lane.

constexpr int kWidth = 8;

struct F {
  __m256 v;
};
struct I {
  __m256i v;
};
struct M {
  __m256 v;  // all ones or all zeros per lane
};

inline __m256i first(int n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

inline F zero() { return {_mm256_setzero_ps()}; }
inline F set1(float x) { return {_mm256_set1_ps(x)}; }
inline F load(const float* p) { return {_mm256_loadu_ps(p)}; }
inline F load_n(const float* p, int n) { return {_mm256_maskload_ps(p, first(n))}; }
inline void store(float* p, F x) { _mm256_storeu_ps(p, x.v); }
inline void store_n(float* p, F x, int n) { _mm256_maskstore_ps(p, first(n), x.v); }

inline F operator+(F a, F b) { return {_mm256_add_ps(a.v, b.v)}; }
inline F operator-(F a, F b) { return {_mm256_sub_ps(a.v, b.v)}; }
inline F operator*(F a, F b) { return {_mm256_mul_ps(a.v, b.v)}; }
inline F operator/(F a, F b) { return {_mm256_div_ps(a.v, b.v)}; }
inline F fma(F a, F b, F c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
inline F sqrt(F a) { return {_mm256_sqrt_ps(a.v)}; }
inline F neg(F a) { return {_mm256_xor_ps(a.v, _mm256_set1_ps(-0.0f))}; }
inline F abs(F a) { return {_mm256_andnot_ps(_mm256_set1_ps(-0.0f), a.v)}; }
// b where either is NaN
inline F max(F a, F b) { return {_mm256_max_ps(a.v, b.v)}; }
inline F min(F a, F b) { return {_mm256_min_ps(a.v, b.v)}; }

inline M less(F a, F b) { return {_mm256_cmp_ps(a.v, b.v, _CMP_LT_OQ)}; }
inline M less_equal(F a, F b) { return {_mm256_cmp_ps(a.v, b.v, _CMP_LE_OQ)}; }
inline M equal(F a, F b) { return {_mm256_cmp_ps(a.v, b.v, _CMP_EQ_OQ)}; }
inline M is_nan(F a) { return {_mm256_cmp_ps(a.v, a.v, _CMP_UNORD_Q)}; }
inline M operator&(M a, M b) { return {_mm256_and_ps(a.v, b.v)}; }
inline M operator|(M a, M b) { return {_mm256_or_ps(a.v, b.v)}; }
inline M operator!(M a) {
  return {_mm256_xor_ps(a.v, _mm256_castsi256_ps(_mm256_set1_epi32(-1)))};
}
inline bool any(M m) { return _mm256_movemask_ps(m.v) != 0; }
inline bool all(M m) { return _mm256_movemask_ps(m.v) == 0xff; }
inline M first_lanes(int n) { return {_mm256_castsi256_ps(first(n))}; }
// a where m, else b
inline F select(M m, F a, F b) { return {_mm256_blendv_ps(b.v, a.v, m.v)}; }
inline I select(M m, I a, I b) {
  return {_mm256_blendv_epi8(b.v, a.v, _mm256_castps_si256(m.v))};
}

inline I set1(std::int32_t x) { return {_mm256_set1_epi32(x)}; }
inline I load(const std::int32_t* p) {
  return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))};
}
inline void store(std::int32_t* p, I x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), x.v);
}
inline I bits(F a) { return {_mm256_castps_si256(a.v)}; }
inline F from_bits(I a) { return {_mm256_castsi256_ps(a.v)}; }
inline I operator+(I a, I b) { return {_mm256_add_epi32(a.v, b.v)}; }
inline I operator-(I a, I b) { return {_mm256_sub_epi32(a.v, b.v)}; }
inline I operator&(I a, I b) { return {_mm256_and_si256(a.v, b.v)}; }
inline I operator|(I a, I b) { return {_mm256_or_si256(a.v, b.v)}; }
template <int k>
inline I shift_left(I a) {
  return {_mm256_slli_epi32(a.v, k)};
}
template <int k>
inline I shift_right(I a) {  // arithmetic
  return {_mm256_srai_epi32(a.v, k)};
}
template <int k>
inline I shift_right_logical(I a) {
  return {_mm256_srli_epi32(a.v, k)};
}
inline M equal(I a, I b) { return {_mm256_castsi256_ps(_mm256_cmpeq_epi32(a.v, b.v))}; }
inline M less(I a, I b) { return {_mm256_castsi256_ps(_mm256_cmpgt_epi32(b.v, a.v))}; }
inline F to_f32(I a) { return {_mm256_cvtepi32_ps(a.v)}; }   // nearest even
inline I to_i32(F a) { return {_mm256_cvttps_epi32(a.v)}; }  // exact for integers in range

inline F widen(__m128i h) {
  return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16))};
}
inline F load_bf16(const std::uint16_t* p) {
  return widen(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
inline F load_bf16_n(const std::uint16_t* p, int n) {
  alignas(16) std::uint16_t t[8] = {};
  for (int i = 0; i < n; ++i) t[i] = p[i];
  return widen(_mm_load_si128(reinterpret_cast<const __m128i*>(t)));
}
// f32 whose upper 16 bits are bf16(x): nearest even, NaN to 0x7fc0
inline F round_bf16(F x) {
  const __m256i u = _mm256_castps_si256(x.v);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
  __m256i r = _mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  r = _mm256_and_si256(r, _mm256_set1_epi32(static_cast<int>(0xffff0000u)));
  return select(is_nan(x), F{_mm256_castsi256_ps(_mm256_set1_epi32(0x7fc00000))},
                F{_mm256_castsi256_ps(r)});
}
// The same for numbers: NaN may come out as anything.
inline F round_bf16_number(F x) {
  const __m256i u = _mm256_castps_si256(x.v);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
  const __m256i r = _mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  return {_mm256_castsi256_ps(
      _mm256_and_si256(r, _mm256_set1_epi32(static_cast<int>(0xffff0000u))))};
}
inline __m128i narrow(F x) {
  const __m256i high = _mm256_srli_epi32(_mm256_castps_si256(round_bf16(x).v), 16);
  const __m256i packed = _mm256_packus_epi32(high, high);
  return _mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0x08));
}
inline void store_bf16(std::uint16_t* p, F x) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), narrow(x));
}
inline void store_bf16_n(std::uint16_t* p, F x, int n) {
  alignas(16) std::uint16_t t[8];
  _mm_store_si128(reinterpret_cast<__m128i*>(t), narrow(x));
  for (int i = 0; i < n; ++i) p[i] = t[i];
}

// [a0+a1, a2+a3, .., b0+b1, b2+b3, ..]: one level of the neighbour tree
inline F pair_add(F a, F b) {
  const __m256 h = _mm256_hadd_ps(a.v, b.v);  // a01 a23 b01 b23 | a45 a67 b45 b67
  return {_mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(h), 0xd8))};
}
inline float lane0(F a) { return _mm256_cvtss_f32(a.v); }
// Largest lane; the order does not matter for a maximum of numbers.
inline float max_lane(F a) {
  __m128 m = _mm_max_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
  m = _mm_max_ps(m, _mm_movehl_ps(m, m));
  m = _mm_max_ss(m, _mm_shuffle_ps(m, m, 1));
  return _mm_cvtss_f32(m);
}

// Pairs of neighbouring bf16 as they lie in memory, one pair per lane; only the first n are read.
inline I load_pairs(const std::uint16_t* p) {
  return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))};
}
inline I load_pairs_n(const std::uint16_t* p, int n) {
  return {_mm256_maskload_epi32(reinterpret_cast<const int*>(p), first(n))};
}
// x[i].lane[j] = x[j].lane[i], in place
inline void transpose(I (&x)[kWidth]) {
  __m256i a[8], b[8];
#pragma GCC unroll 4
  for (int i = 0; i < 8; i += 2) {
    a[i] = _mm256_unpacklo_epi32(x[i].v, x[i + 1].v);
    a[i + 1] = _mm256_unpackhi_epi32(x[i].v, x[i + 1].v);
  }
#pragma GCC unroll 2
  for (int i = 0; i < 8; i += 4) {
    b[i] = _mm256_unpacklo_epi64(a[i], a[i + 2]);
    b[i + 1] = _mm256_unpackhi_epi64(a[i], a[i + 2]);
    b[i + 2] = _mm256_unpacklo_epi64(a[i + 1], a[i + 3]);
    b[i + 3] = _mm256_unpackhi_epi64(a[i + 1], a[i + 3]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    x[i].v = _mm256_permute2x128_si256(b[i], b[i + 4], 0x20);
    x[i + 4].v = _mm256_permute2x128_si256(b[i], b[i + 4], 0x31);
  }
}
