// Hopper chains with AVX2: panels of 16 columns.
#include <immintrin.h>

#include <cstdint>

#include "rlk/numerics/mma/hopper_isa.h"

namespace {

struct V {
  static constexpr int kWidth = 8;
  using F = __m256;
  using I = __m256i;

  static F load(const float* x) { return _mm256_loadu_ps(x); }
  static I load(const std::uint16_t* x) {
    return _mm256_loadu_si256(reinterpret_cast<const I*>(x));
  }
  static void store(float* x, F v) { _mm256_storeu_ps(x, v); }
  static void store(std::int32_t* x, I v) { _mm256_storeu_si256(reinterpret_cast<I*>(x), v); }
  static F broadcast(float x) { return _mm256_set1_ps(x); }
  static I broadcast(std::uint32_t x) { return _mm256_set1_epi32(static_cast<int>(x)); }
  static I set(int x) { return _mm256_set1_epi32(x); }

  static I add(I a, I b) { return _mm256_add_epi32(a, b); }
  static I sub(I a, I b) { return _mm256_sub_epi32(a, b); }
  static I max(I a, I b) { return _mm256_max_epi32(a, b); }
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
  static I as_int(F a) { return _mm256_castps_si256(a); }
  static F as_float(I a) { return _mm256_castsi256_ps(a); }

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
};

#include "rlk/numerics/mma/isa/hopper_body.h"

}  // namespace

const rlk::numerics::mma::HopperIsa rlk::numerics::mma::kHopperAvx2 = {"avx2", 2 * V::kWidth,
                                                                       product};
