// The models of matrix instructions with AVX-512: panels of 32 columns.
#include <immintrin.h>

#include <cstdint>

#include "rlk/numerics/mma/columns_isa.h"

namespace {

struct V {
  static constexpr int kWidth = 16;
  using F = __m512;
  using I = __m512i;
  using D = __m512d;  // half as many

  static F zero() { return _mm512_setzero_ps(); }
  static F load(const float* x) { return _mm512_loadu_ps(x); }
  static I load(const std::int32_t* x) { return _mm512_loadu_si512(x); }
  static void store(float* x, F v) { _mm512_storeu_ps(x, v); }
  static void store(std::int32_t* x, I v) { _mm512_storeu_si512(x, v); }
  static F broadcast(const float* x) { return _mm512_set1_ps(*x); }
  static I broadcast(const std::int32_t* x) { return _mm512_set1_epi32(*x); }
  static I set(int x) { return _mm512_set1_epi32(x); }

  static I add(I a, I b) { return _mm512_add_epi32(a, b); }
  static I sub(I a, I b) { return _mm512_sub_epi32(a, b); }
  static I max(I a, I b) { return _mm512_max_epi32(a, b); }
  static I min(I a, I b) { return _mm512_min_epi32(a, b); }
  static I add16(I a, I b) { return _mm512_add_epi16(a, b); }
  static I max16(I a, I b) { return _mm512_max_epi16(a, b); }
  static I bits_and(I a, I b) { return _mm512_and_si512(a, b); }
  static I bits_or(I a, I b) { return _mm512_or_si512(a, b); }
  template <int n>
  static I shift_left(I a) {
    return _mm512_slli_epi32(a, n);
  }
  template <int n>
  static I shift_right(I a) {
    return _mm512_srli_epi32(a, n);
  }
  template <int n>
  static I shift_right_signed(I a) {
    return _mm512_srai_epi32(a, n);
  }
  // a == b ? x : y, and a < b ? x : y
  static I select_equal(I a, I b, I x, I y) {
    return _mm512_mask_blend_epi32(_mm512_cmpeq_epi32_mask(a, b), y, x);
  }
  static I select_less(I a, I b, I x, I y) {
    return _mm512_mask_blend_epi32(_mm512_cmplt_epi32_mask(a, b), y, x);
  }
  static I as_int(F a) { return _mm512_castps_si512(a); }
  static F as_float(I a) { return _mm512_castsi512_ps(a); }

  static F add(F a, F b) { return _mm512_add_ps(a, b); }
  static F mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static I cut(F a) { return _mm512_cvttps_epi32(a); }
  static F to_float_toward_zero(I a) {
    return _mm512_cvt_roundepi32_ps(a, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC);
  }
  static I sign_differs_from_both(I sum, I a, I b) {
    constexpr int kDiffers = 0x18;  // where a = b and sum differs: (sum, a, b) is 011 or 100
    return _mm512_ternarylogic_epi32(sum, a, b, kDiffers);
  }
  static bool any_negative(I a) { return _mm512_movepi32_mask(a) != 0; }
  static F canonical_nan(F a) {
    const __mmask16 is_nan = _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q);
    return _mm512_mask_blend_ps(is_nan, a, as_float(set(0x7fc00000)));
  }

  static D low(F a) { return _mm512_cvtps_pd(_mm512_castps512_ps256(a)); }
  static D high(F a) { return _mm512_cvtps_pd(_mm512_extractf32x8_ps(a, 1)); }
  static D low(I a) { return _mm512_cvtepi32_pd(_mm512_castsi512_si256(a)); }
  static D high(I a) { return _mm512_cvtepi32_pd(_mm512_extracti32x8_epi32(a, 1)); }
  static F join(D low, D high) {
    return _mm512_insertf32x8(_mm512_castps256_ps512(_mm512_cvtpd_ps(low)), _mm512_cvtpd_ps(high),
                              1);
  }
  static D set_double(double x) { return _mm512_set1_pd(x); }
  static D add(D a, D b) { return _mm512_add_pd(a, b); }
  static D mul(D a, D b) { return _mm512_mul_pd(a, b); }
  static D floor(D a) { return _mm512_roundscale_pd(a, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC); }
  // Without the bits beyond the 32nd, toward minus infinity. Not for -0.
  static D floor_32_bits(D a) {
    const I bits = _mm512_castpd_si512(a);
    const I beyond = _mm512_set1_epi64(0x1fffff);
    const I negative = _mm512_srai_epi64(bits, 63);
    const I raised = _mm512_add_epi64(bits, bits_and(negative, beyond));
    return _mm512_castsi512_pd(_mm512_andnot_si512(beyond, raised));
  }
};

// Each text needs the ones before it.
// clang-format off
#include "rlk/numerics/mma/isa/columns_body.h"
#include "rlk/numerics/mma/isa/hopper_body.h"
#include "rlk/numerics/mma/isa/cdna3_body.h"
#include "rlk/numerics/mma/isa/cdna2_body.h"
// clang-format on

}  // namespace

namespace rlk::numerics::mma {
const ColumnsIsa kHopperAvx512 = {"avx512", kPanel, chains<Hopper>};
const ColumnsIsa kCdna3Avx512 = {"avx512", kPanel, chains<Cdna3>};
const ColumnsIsa kCdna2Avx512 = {"avx512", kPanel, cdna2_chains};
}  // namespace rlk::numerics::mma
