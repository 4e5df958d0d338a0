// Hopper chains with AVX-512: panels of 32 columns.
#include <immintrin.h>

#include <cstdint>

#include "rlk/numerics/mma/hopper_isa.h"

namespace {

struct V {
  static constexpr int kWidth = 16;
  using F = __m512;
  using I = __m512i;

  static F load(const float* x) { return _mm512_loadu_ps(x); }
  static I load(const std::uint16_t* x) { return _mm512_loadu_si512(x); }
  static void store(float* x, F v) { _mm512_storeu_ps(x, v); }
  static void store(std::int32_t* x, I v) { _mm512_storeu_si512(x, v); }
  static F broadcast(float x) { return _mm512_set1_ps(x); }
  static I broadcast(std::uint32_t x) { return _mm512_set1_epi32(static_cast<int>(x)); }
  static I set(int x) { return _mm512_set1_epi32(x); }

  static I add(I a, I b) { return _mm512_add_epi32(a, b); }
  static I sub(I a, I b) { return _mm512_sub_epi32(a, b); }
  static I max(I a, I b) { return _mm512_max_epi32(a, b); }
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
  static I as_int(F a) { return _mm512_castps_si512(a); }
  static F as_float(I a) { return _mm512_castsi512_ps(a); }

  static F mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static I cut(F a) { return _mm512_cvttps_epi32(a); }
  static F to_float_toward_zero(I a) {
    return _mm512_cvt_roundepi32_ps(a, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC);
  }
  static I sign_differs_from_both(I sum, I a, I b) {
    constexpr int kDiffers =
        0x18;  // set where a = b and sum differs: inputs (sum, a, b) 011 and 100
    return _mm512_ternarylogic_epi32(sum, a, b, kDiffers);
  }
  static bool any_negative(I a) { return _mm512_movepi32_mask(a) != 0; }
};

#include "rlk/numerics/mma/isa/hopper_body.h"

}  // namespace

const rlk::numerics::mma::HopperIsa rlk::numerics::mma::kHopperAvx512 = {"avx512", 2 * V::kWidth,
                                                                         product};
