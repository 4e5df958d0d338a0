// Matrix products with AVX2 and FMA: a tile of 6 rows by 16 columns fills 12 of 16 registers.
#include <immintrin.h>

#include <cstdint>

#include "rlk/kernels/cpu/gemm_isa.h"

namespace {

#include "rlk/kernels/cpu/isa/vec_avx2.h"
#include "rlk/kernels/cpu/isa/vec_storage.h"

constexpr int kMaxRows = 6;
constexpr int kDirectRows = 12;
constexpr int panels_at_once(int rows) { return rows == 1 ? 4 : rows <= 3 ? 2 : 1; }

inline void transpose(F (&v)[kWidth]) {
  __m256 a[8], b[8];
  for (int i = 0; i < 8; i += 2) {  // pairs
    a[i] = _mm256_unpacklo_ps(v[i].v, v[i + 1].v);
    a[i + 1] = _mm256_unpackhi_ps(v[i].v, v[i + 1].v);
  }
  for (int i = 0; i < 8; i += 4) {  // fours
    b[i] = _mm256_shuffle_ps(a[i], a[i + 2], 0x44);
    b[i + 1] = _mm256_shuffle_ps(a[i], a[i + 2], 0xee);
    b[i + 2] = _mm256_shuffle_ps(a[i + 1], a[i + 3], 0x44);
    b[i + 3] = _mm256_shuffle_ps(a[i + 1], a[i + 3], 0xee);
  }
  for (int i = 0; i < 4; ++i) {  // halves
    v[i].v = _mm256_permute2f128_ps(b[i], b[i + 4], 0x20);
    v[i + 4].v = _mm256_permute2f128_ps(b[i], b[i + 4], 0x31);
  }
}

inline void store_bf16_pair(std::uint16_t* p, F x, F y) {
  store_bf16(p, x);
  store_bf16(p + kWidth, y);
}

#include "rlk/kernels/cpu/isa/gemm_body.h"

}  // namespace

const rlk::cpu::GemmIsa rlk::cpu::kGemmAvx2 = kTable;
