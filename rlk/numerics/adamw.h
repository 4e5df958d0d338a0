// AdamW with decoupled decay, one f32 weight at a time (section 6 of the contract).
//
//   m = fma(b1, m, f1*g)      v = fma(b2, v, f2*(g*g))
//   u = (m/h1) / (sqrt(v/h2) + eps)
//   w = fma(-lr, fma(wd, w, u), w)
//
// Source: Loshchilov & Hutter 2019.
#pragma once

#include <cstdint>

#include "rlk/numerics/ieee.h"

namespace rlk::numerics {

// b^t as the contract's running product in f64: ((1*b)*b)*b.. A checkpoint needs to keep only t.
RLK_HD inline double running_power(double b, std::int64_t t) {
  double power = 1.0;
  for (std::int64_t i = 0; i < t && power != 0.0; ++i) power *= b;
  return power;
}

struct AdamWConstants {
  float b1, f1, h1;
  float b2, f2, h2;
  float eps, lr, weight_decay;  // weight_decay is 0 for biases and norm weights
};

// Constants of step t (from 1): differences in f64, each rounded to f32 once.
RLK_HD inline AdamWConstants adamw_constants(double beta1, double beta2, double eps, double lr,
                                             double weight_decay, std::int64_t t) {
  const auto f32 = [](double x) { return static_cast<float>(x); };
  return {f32(beta1), f32(1.0 - beta1), f32(1.0 - running_power(beta1, t)),
          f32(beta2), f32(1.0 - beta2), f32(1.0 - running_power(beta2, t)),
          f32(eps),   f32(lr),          f32(weight_decay)};
}

// One step of one weight; g is the clipped gradient.
RLK_HD inline void adamw_step(const AdamWConstants& c, float g, float* w, float* m, float* v) {
  *m = fma(c.b1, *m, c.f1 * g);
  *v = fma(c.b2, *v, c.f2 * (g * g));
  const float u = (*m / c.h1) / (sqrt(*v / c.h2) + c.eps);
  *w = fma(-c.lr, fma(c.weight_decay, *w, u), *w);
}

}  // namespace rlk::numerics
