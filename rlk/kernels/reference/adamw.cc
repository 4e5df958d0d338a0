#include "rlk/kernels/adamw.h"

#include "rlk/kernels/reference/table.h"
#include "rlk/numerics/adamw.h"
#include "rlk/numerics/bf16.h"
#include "rlk/numerics/grad_norm.h"
#include "rlk/numerics/math.h"

namespace rlk::reference {

void grad_norm(Exec& exec, const GradNormArgs& args) {
  const auto for_each = [&](const auto& visit) {
    for (std::int64_t i = 0; i < args.num_grads; ++i) {
      const float* grad = args.grads[i].at<float>();
      for (std::int64_t j = 0; j < args.grads[i].layout.size(); ++j) visit(grad[j]);
    }
  };
  numerics::MaxExponent exponent;
  for_each([&](float x) { exponent.add(x); });
  if (!exponent.finite()) {
    exec.fault.report(0);
    *args.norm = numerics::quiet_nan();
    return;
  }
  numerics::NormSum sum(exponent);
  for_each([&](float x) { sum.add(x); });
  *args.norm = sum.finish();
  if (!numerics::is_finite(*args.norm)) exec.fault.report(0);
}

void adamw(Exec&, const AdamwArgs& args) {
  const numerics::AdamWConstants constants{args.b1, args.f1,  args.h1, args.b2, args.f2,
                                           args.h2, args.eps, args.lr, args.wd};
  for (std::int64_t i = 0; i < args.w.shape(0); ++i) {
    const float dw = *args.dw.at<float>(i);
    const float g = args.grad_scale == 1.0f ? dw : dw * args.grad_scale;
    float* master = args.master.at<float>(i);
    numerics::adamw_step(constants, g, master, args.m.at<float>(i), args.v.at<float>(i));
    *args.w.at<bf16>(i) = numerics::to_bf16(*master);
  }
}

}  // namespace rlk::reference
