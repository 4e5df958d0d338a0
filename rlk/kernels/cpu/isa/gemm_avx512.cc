// Matrix products with AVX-512: a tile of 14 rows by 32 columns fills 28 of 32 registers.
#include <immintrin.h>

#include <cstdint>

#include "rlk/kernels/cpu/gemm_isa.h"

namespace {

#include "rlk/kernels/cpu/isa/vec_avx512.h"

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

#include "rlk/kernels/cpu/isa/gemm_body.h"

}  // namespace

const rlk::cpu::GemmIsa rlk::cpu::kGemmAvx512 = kTable;
