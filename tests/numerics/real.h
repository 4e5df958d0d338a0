// A thin owner of an MPFR number, and errors in units of the last place.
#pragma once

#include <algorithm>
#include <cmath>

#include <mpfr.h>

namespace rlk::numerics {

class Real {
 public:
  explicit Real(double x = 0.0, int precision = 240) {
    mpfr_init2(value_, precision);
    mpfr_set_d(value_, x, MPFR_RNDN);
  }
  Real(const Real& other) {
    mpfr_init2(value_, mpfr_get_prec(other.value_));
    mpfr_set(value_, other.value_, MPFR_RNDN);
  }
  Real& operator=(const Real& other) {
    mpfr_set(value_, other.value_, MPFR_RNDN);
    return *this;
  }
  ~Real() { mpfr_clear(value_); }

  mpfr_ptr get() { return value_; }
  mpfr_srcptr get() const { return value_; }
  double to_double() const { return mpfr_get_d(value_, MPFR_RNDN); }
  float to_float() const { return mpfr_get_flt(value_, MPFR_RNDN); }

 private:
  mpfr_t value_;
};

// |got - exact| in units of the last place of a format with `bits` significant bits and smallest
// positive number 2^min_exponent, at the exact value.
inline double error_ulp(double got, const Real& exact, int bits, int min_exponent) {
  Real difference;
  mpfr_sub_d(difference.get(), exact.get(), got, MPFR_RNDN);
  int exponent = min_exponent;
  if (mpfr_zero_p(exact.get()) == 0) {
    exponent = std::max(exponent, static_cast<int>(mpfr_get_exp(exact.get())) - bits);
  }
  mpfr_mul_2si(difference.get(), difference.get(), -exponent, MPFR_RNDN);
  return std::fabs(difference.to_double());
}

inline double error_ulp_f32(float got, const Real& exact) {
  return error_ulp(got, exact, 24, -149);
}
inline double error_ulp_f64(double got, const Real& exact) {
  return error_ulp(got, exact, 53, -1074);
}

}  // namespace rlk::numerics
