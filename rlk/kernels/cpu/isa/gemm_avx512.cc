// Matrix products with AVX-512: a tile of 14 rows by 32 columns fills 28 of 32 registers.
#include <immintrin.h>

#include <cstdint>

#include "rlk/kernels/cpu/gemm_isa.h"

namespace {

#include "rlk/kernels/cpu/isa/vec_avx512.h"
#include "rlk/kernels/cpu/isa/vec_storage.h"

constexpr int kMaxRows = 14;
constexpr int kDirectRows = 28;
constexpr int panels_at_once(int rows) { return rows <= 2 ? 4 : rows <= 4 ? 2 : 1; }

inline void transpose(F (&v)[kWidth]) {
  __m512 a[16], b[16];
  for (int i = 0; i < 16; i += 2) {  // pairs
    a[i] = _mm512_unpacklo_ps(v[i].v, v[i + 1].v);
    a[i + 1] = _mm512_unpackhi_ps(v[i].v, v[i + 1].v);
  }
  for (int i = 0; i < 16; i += 4) {  // fours: b[i + c] has column c of each quarter
    b[i] = _mm512_shuffle_ps(a[i], a[i + 2], 0x44);
    b[i + 1] = _mm512_shuffle_ps(a[i], a[i + 2], 0xee);
    b[i + 2] = _mm512_shuffle_ps(a[i + 1], a[i + 3], 0x44);
    b[i + 3] = _mm512_shuffle_ps(a[i + 1], a[i + 3], 0xee);
  }
  for (int c = 0; c < 4; ++c) {  // quarters
    const __m512 even_top = _mm512_shuffle_f32x4(b[c], b[c + 4], 0x88);
    const __m512 odd_top = _mm512_shuffle_f32x4(b[c], b[c + 4], 0xdd);
    const __m512 even_end = _mm512_shuffle_f32x4(b[c + 8], b[c + 12], 0x88);
    const __m512 odd_end = _mm512_shuffle_f32x4(b[c + 8], b[c + 12], 0xdd);
    v[c].v = _mm512_shuffle_f32x4(even_top, even_end, 0x88);
    v[c + 8].v = _mm512_shuffle_f32x4(even_top, even_end, 0xdd);
    v[c + 4].v = _mm512_shuffle_f32x4(odd_top, odd_end, 0x88);
    v[c + 12].v = _mm512_shuffle_f32x4(odd_top, odd_end, 0xdd);
  }
}

// Nearest even, without what store_bf16 does for NaN lane by lane: they are rare.
inline void store_bf16_pair(std::uint16_t* p, F x, F y) {
  if (_mm512_cmp_ps_mask(x.v, y.v, _CMP_UNORD_Q) != 0) [[unlikely]] {
    store_bf16(p, x);
    store_bf16(p + kWidth, y);
    return;
  }
  const auto round = [](__m512i u) {
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    return _mm512_add_epi32(_mm512_add_epi32(u, _mm512_set1_epi32(0x7fff)), odd);
  };
  alignas(64) static constexpr std::uint16_t kUpper[32] = {
      1,  3,  5,  7,  9,  11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31,
      33, 35, 37, 39, 41, 43, 45, 47, 49, 51, 53, 55, 57, 59, 61, 63};
  _mm512_storeu_si512(
      p, _mm512_permutex2var_epi16(round(_mm512_castps_si512(x.v)), _mm512_load_si512(kUpper),
                                   round(_mm512_castps_si512(y.v))));
}

#include "rlk/kernels/cpu/isa/gemm_body.h"

}  // namespace

const rlk::cpu::GemmIsa rlk::cpu::kGemmAvx512 = kTable;
