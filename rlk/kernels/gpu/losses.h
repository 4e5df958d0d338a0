// What the losses of a token have in common.
#pragma once

#include "rlk/kernels/gpu/views.h"
#include "rlk/kernels/kl.h"
#include "rlk/numerics/math.h"

namespace rlk::gpu {

struct KlTerm {
  float value;
  float slope;
};

RLK_DEVICE KlTerm kl_term(Kl type, float logp, float ref) {
  const float b = logp - ref;
  if (type == Kl::kK1) return {b, 1.0f};
  if (type == Kl::kK2) return {0.5f * (b * b), b};
  if (type == Kl::kK3) {
    const float e = numerics::exp(-b);
    return {(e - 1.0f) + b, 1.0f - e};
  }
  return {0.0f, 0.0f};
}

// Token t counts: an absent weight masks nothing.
RLK_DEVICE bool is_active(const Ref<const float>& weight, std::int64_t t) {
  return !weight || weight(t) != 0.0f;
}

// An optional output.
RLK_DEVICE void put(const Ref<float>& out, std::int64_t t, float value) {
  if (out) out(t) = value;
}

}  // namespace rlk::gpu
