#include "rlk/kernels/grpo_loss.h"

#include <algorithm>
#include <cmath>

#include "rlk/kernels/reference/table.h"
#include "rlk/numerics/math.h"

namespace rlk::reference {
namespace {

struct KlTerm {
  float value;
  float slope;
};

KlTerm kl_term(Kl type, float b) {
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

}  // namespace

void grpo_loss(Exec& exec, const GrpoLossArgs& args) {
  const auto store = [](const TensorView& out, std::int64_t t, float value) {
    if (out) *out.at<float>(t) = value;
  };
  for (std::int64_t t = 0; t < args.g.shape(0); ++t) {
    const float weight = *args.weight.at<float>(t);
    if (weight == 0.0f) {
      store(args.g, t, 0.0f);
      store(args.pg_loss, t, 0.0f);
      store(args.kl, t, 0.0f);
      store(args.ratio, t, 0.0f);
      continue;
    }
    const float logp = *args.logp.at<float>(t);
    const float a = *args.advantage.at<float>(t);
    const float r = numerics::exp(logp - *args.old.at<float>(t));
    const bool clipped = (a > 0.0f && r > args.hi) || (a < 0.0f && r < args.lo);
    const float pg = clipped ? 0.0f : -(a * r);
    const float b = args.kl_type == Kl::kNone ? 0.0f : logp - *args.ref.at<float>(t);
    const KlTerm kl = kl_term(args.kl_type, b);
    const float g = std::fma(args.beta, kl.slope, pg) * weight;
    const float clamped = std::min(std::max(r, args.lo), args.hi);
    if (!numerics::is_finite(g)) exec.fault.report(t);
    store(args.g, t, g);
    store(args.pg_loss, t, -std::min(r * a, clamped * a));
    store(args.kl, t, kl.value);
    store(args.ratio, t, r);
  }
}

}  // namespace rlk::reference
