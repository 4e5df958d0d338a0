// Terms that several losses have in common (docs/contract.md, section 6).
#pragma once

#include "rlk/kernels/kl.h"
#include "rlk/numerics/math.h"

namespace rlk::reference {

inline float ratio_of(float logp, float old) { return numerics::exp(logp - old); }

struct KlTerm {
  float value;
  float slope;
};

inline KlTerm kl_term(Kl type, float logp, float ref) {
  const float b = logp - ref;
  switch (type) {
    case Kl::kNone: break;
    case Kl::kK1: return {b, 1.0f};
    case Kl::kK2: return {0.5f * (b * b), b};
    case Kl::kK3: {
      const float e = numerics::exp(-b);
      return {(e - 1.0f) + b, 1.0f - e};
    }
  }
  return {0.0f, 0.0f};
}

// Token t counts: an absent weight masks nothing.
inline bool is_active(const ConstTensorView& weight, std::int64_t t) {
  return !weight || *weight.at<float>(t) != 0.0f;
}

// An optional output.
inline void store(const TensorView& out, std::int64_t t, float value) {
  if (out) *out.at<float>(t) = value;
}

}  // namespace rlk::reference
