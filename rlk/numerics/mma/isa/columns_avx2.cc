// The models of matrix instructions with AVX2: panels of 16 columns.
#include <immintrin.h>

#include <cstdint>

#include "rlk/numerics/mma/columns_isa.h"

namespace {

struct V {
  static constexpr int kWidth = 8;
  using F = __m256;
  using I = __m256i;
  using D = __m256d;  // half as many

  static F zero() { return _mm256_setzero_ps(); }
  static F load(const float* x) { return _mm256_loadu_ps(x); }
  static I load(const std::int32_t* x) { return _mm256_loadu_si256(reinterpret_cast<const I*>(x)); }
  static void store(float* x, F v) { _mm256_storeu_ps(x, v); }
  static void store(std::int32_t* x, I v) { _mm256_storeu_si256(reinterpret_cast<I*>(x), v); }
  static F broadcast(const float* x) { return _mm256_broadcast_ss(x); }
  static I broadcast(const std::int32_t* x) { return _mm256_set1_epi32(*x); }
  static I set(int x) { return _mm256_set1_epi32(x); }

  static I add(I a, I b) { return _mm256_add_epi32(a, b); }
  static I sub(I a, I b) { return _mm256_sub_epi32(a, b); }
  static I max(I a, I b) { return _mm256_max_epi32(a, b); }
  static I min(I a, I b) { return _mm256_min_epi32(a, b); }
  static I add16(I a, I b) { return _mm256_add_epi16(a, b); }
  static I max16(I a, I b) { return _mm256_max_epi16(a, b); }
  static I bits_and(I a, I b) { return _mm256_and_si256(a, b); }
  static I bits_or(I a, I b) { return _mm256_or_si256(a, b); }
  template <int n>
  static I shift_left(I a) {
    return _mm256_slli_epi32(a, n);
  }
  template <int n>
  static I shift_right(I a) {
    return _mm256_srli_epi32(a, n);
  }
  template <int n>
  static I shift_right_signed(I a) {
    return _mm256_srai_epi32(a, n);
  }
  // a == b ? x : y, and a < b ? x : y
  static I select_equal(I a, I b, I x, I y) {
    return _mm256_blendv_epi8(y, x, _mm256_cmpeq_epi32(a, b));
  }
  static I select_less(I a, I b, I x, I y) {
    return _mm256_blendv_epi8(y, x, _mm256_cmpgt_epi32(b, a));
  }
  static I as_int(F a) { return _mm256_castps_si256(a); }
  static F as_float(I a) { return _mm256_castsi256_ps(a); }

  static F add(F a, F b) { return _mm256_add_ps(a, b); }
  static F mul(F a, F b) { return _mm256_mul_ps(a, b); }
  static I cut(F a) { return _mm256_cvttps_epi32(a); }
  // Nearest, then one step back where that went away from zero. 2^31 converts to -2^31, which the
  // subtraction takes for what it is.
  static F to_float_toward_zero(I a) {
    const I magnitude = _mm256_abs_epi32(a);
    const F nearest = _mm256_cvtepi32_ps(magnitude);
    const I beyond = sub(magnitude, cut(nearest));
    const I bits = add(as_int(nearest), shift_right_signed<31>(beyond));
    return as_float(bits_or(bits, bits_and(a, set(INT32_MIN))));
  }
  static I sign_differs_from_both(I sum, I a, I b) {
    return bits_and(_mm256_xor_si256(sum, a), _mm256_xor_si256(sum, b));
  }
  static bool any_negative(I a) { return _mm256_movemask_ps(as_float(a)) != 0; }
  static F canonical_nan(F a) {
    const F is_nan = _mm256_cmp_ps(a, a, _CMP_UNORD_Q);
    return _mm256_blendv_ps(a, as_float(set(0x7fc00000)), is_nan);
  }

  static D low(F a) { return _mm256_cvtps_pd(_mm256_castps256_ps128(a)); }
  static D high(F a) { return _mm256_cvtps_pd(_mm256_extractf128_ps(a, 1)); }
  static D low(I a) { return _mm256_cvtepi32_pd(_mm256_castsi256_si128(a)); }
  static D high(I a) { return _mm256_cvtepi32_pd(_mm256_extracti128_si256(a, 1)); }
  static F join(D low, D high) {
    return _mm256_insertf128_ps(_mm256_castps128_ps256(_mm256_cvtpd_ps(low)), _mm256_cvtpd_ps(high),
                                1);
  }
  static D set_double(double x) { return _mm256_set1_pd(x); }
  static D add(D a, D b) { return _mm256_add_pd(a, b); }
  static D mul(D a, D b) { return _mm256_mul_pd(a, b); }
  static D floor(D a) { return _mm256_floor_pd(a); }
  // Without the bits beyond the 32nd, toward minus infinity. Not for -0.
  static D floor_32_bits(D a) {
    const I bits = _mm256_castpd_si256(a);
    const I beyond = _mm256_set1_epi64x(0x1fffff);
    const I negative = _mm256_cmpgt_epi64(_mm256_setzero_si256(), bits);
    const I raised = _mm256_add_epi64(bits, bits_and(negative, beyond));
    return _mm256_castsi256_pd(_mm256_andnot_si256(beyond, raised));
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
const ColumnsIsa kHopperAvx2 = {"avx2", kPanel, chains<Hopper>};
const ColumnsIsa kCdna3Avx2 = {"avx2", kPanel, chains<Cdna3>};
const ColumnsIsa kCdna2Avx2 = {"avx2", kPanel, cdna2_chains};
}  // namespace rlk::numerics::mma
