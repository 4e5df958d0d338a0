// The losses, adamw and grad_norm of the CPU backend against the reference, byte for byte.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "rlk/numerics/adamw.h"
#include "rlk/numerics/math.h"
#include "tests/kernels/backends.h"

namespace rlk::test {
namespace {

Tensor f32_random(std::int64_t n, std::uint64_t seed, Kind kind = Kind::kNormal,
                  double scale = 1.0) {
  return random_tensor(DType::kF32, {n}, seed, kind, scale);
}

struct LossCase {
  Tensor logp, old, ref, advantage, weight;
};

LossCase loss_case(std::int64_t n, double spread) {
  LossCase c{f32_random(n, 1, Kind::kNormal, spread), f32_random(n, 2, Kind::kNormal, spread),
             f32_random(n, 3, Kind::kNormal, spread), f32_random(n, 4), f32_random(n, 5)};
  for (std::int64_t t = 0; t < n; ++t) {
    if (t % 5 == 0) c.advantage.data<float>()[t] = 0.0f;
    if (t % 7 == 3) c.logp.data<float>()[t] = c.old.data<float>()[t];  // ratio 1
    if (t % 3 != 0) continue;
    c.weight.data<float>()[t] = t % 2 == 0 ? 0.0f : -0.0f;
    c.logp.data<float>()[t] = std::numeric_limits<float>::quiet_NaN();  // masked: not looked at
  }
  return c;
}

OpCall loss_run(const LossCase& c, Kl kl, bool all_outputs) {
  return [&c, kl, all_outputs](const KernelTable& kernels, Exec& exec) {
    std::vector<Tensor> out;
    for (int i = 0; i < 4; ++i) out.push_back(Tensor(DType::kF32, {c.logp.size()}));
    GrpoLossArgs args;
    args.g = out[0];
    if (all_outputs) {
      args.pg_loss = out[1];
      args.kl = out[2];
      args.ratio = out[3];
    }
    args.logp = c.logp;
    args.old = c.old;
    if (kl != Kl::kNone) args.ref = c.ref;
    args.advantage = c.advantage;
    args.weight = c.weight;
    args.beta = 0.03f;
    args.kl_type = kl;
    kernels.grpo_loss(exec, args);
    return out;
  };
}

TEST(GrpoLossInvariance, EqualsTheReferenceForEveryKlAndSize) {
  for (const Kl kl : {Kl::kNone, Kl::kK1, Kl::kK2, Kl::kK3}) {
    for (const std::int64_t n : {0, 1, 15, 16, 17, 1000, 20011}) {
      for (const double spread : {0.1, 5.0}) {
        const LossCase c = loss_case(n, spread);
        expect_the_reference_everywhere(loss_run(c, kl, true), "grpo_loss");
        expect_the_reference_everywhere(loss_run(c, kl, false), "grpo_loss", {}, {2});
      }
    }
  }
}

TEST(GrpoLoss, ReportsTheFirstTokenThatIsNotFinite) {
  LossCase c = loss_case(30000, 0.1);
  for (const std::int64_t t : {20003, 20006, 29999}) {
    c.weight.data<float>()[t] = 1.0f;
    c.advantage.data<float>()[t] = -1.0f;
    c.logp.data<float>()[t] = 200.0f;  // the ratio overflows
  }
  expect_the_reference_everywhere(loss_run(c, Kl::kK3, true), "grpo_loss");
  EXPECT_EQ(outcome(loss_run(c, Kl::kK3, true), cpu_kernels()).fault_row, 20003);
}

TEST(GrpoLossTwin, TwoRoundingsInsteadOfFmaGiveOtherBytes) {
  const LossCase c = loss_case(1000, 0.1);
  const Outcome right = outcome(loss_run(c, Kl::kK2, true), cpu_kernels());
  Tensor wrong(DType::kF32, {1000});
  for (std::int64_t t = 0; t < 1000; ++t) {
    if (value(c.weight, t) == 0.0f) continue;
    const float r = value(right.outputs[3], t);
    const float a = value(c.advantage, t);
    const float pg = (a > 0 && r > 1.2f) || (a < 0 && r < 0.8f) ? 0.0f : -(a * r);
    wrong.data<float>()[t] =
        (0.03f * (value(c.logp, t) - value(c.ref, t)) + pg) * value(c.weight, t);
  }
  EXPECT_FALSE(same_bytes(right.outputs[0], wrong));
  for (std::int64_t t = 0; t < 1000; ++t) {
    EXPECT_NEAR(value(right.outputs[0], t), value(wrong, t), 1e-5f);
  }
}

OpCall ratio_run(const LossCase& c, bool masked) {
  return [&c, masked](const KernelTable& kernels, Exec& exec) {
    std::vector<Tensor> out;
    out.push_back(Tensor(DType::kF32, {c.logp.size()}));
    RatioArgs args{out[0], masked ? c.logp : c.ref, c.old, {}};
    if (masked) args.weight = c.weight;
    kernels.ratio(exec, args);
    return out;
  };
}

OpCall kl_run(const LossCase& c, Kl type, bool masked) {
  return [&c, type, masked](const KernelTable& kernels, Exec& exec) {
    std::vector<Tensor> out;
    for (int i = 0; i < 2; ++i) out.push_back(Tensor(DType::kF32, {c.logp.size()}));
    KlArgs args{out[0], {}, masked ? c.logp : c.old, c.ref, {}, type};
    if (masked) {
      args.weight = c.weight;
      args.slope = out[1];
    }
    kernels.kl(exec, args);
    return out;
  };
}

TEST(RatioInvariance, EqualsTheReferenceForEverySize) {
  for (const std::int64_t n : {0, 1, 15, 16, 17, 1000, 20011}) {
    for (const double spread : {0.1, 5.0, 40.0}) {  // at 40 some ratios are infinite
      const LossCase c = loss_case(n, spread);
      for (const bool masked : {false, true}) {
        expect_the_reference_everywhere(ratio_run(c, masked), "ratio", {}, {1, 3});
      }
    }
  }
}

TEST(KlInvariance, EqualsTheReferenceForEveryEstimateAndSize) {
  for (const Kl type : {Kl::kK1, Kl::kK2, Kl::kK3}) {
    for (const std::int64_t n : {0, 1, 15, 16, 17, 1000, 20011}) {
      for (const double spread : {0.1, 5.0, 40.0}) {
        const LossCase c = loss_case(n, spread);
        for (const bool masked : {false, true}) {
          expect_the_reference_everywhere(kl_run(c, type, masked), "kl", {}, {1, 3});
        }
      }
    }
  }
}

TEST(RatioTwin, AQuotientOfProbabilitiesGivesOtherBytes) {
  const LossCase c = loss_case(1000, 0.5);
  const Outcome right = outcome(ratio_run(c, false), cpu_kernels());
  Tensor wrong(DType::kF32, {1000});
  for (std::int64_t t = 0; t < 1000; ++t) {
    wrong.data<float>()[t] = numerics::exp(value(c.ref, t)) / numerics::exp(value(c.old, t));
    EXPECT_NEAR(value(wrong, t), value(right.outputs[0], t), 1e-5f * value(wrong, t));
  }
  EXPECT_FALSE(same_bytes(right.outputs[0], wrong));
}

TEST(KlTwin, AddingTheTermsOfK3InAnotherOrderGivesOtherBytes) {
  const LossCase c = loss_case(1000, 0.5);
  const Outcome right = outcome(kl_run(c, Kl::kK3, false), cpu_kernels());
  Tensor wrong(DType::kF32, {1000});
  for (std::int64_t t = 0; t < 1000; ++t) {
    const float b = value(c.old, t) - value(c.ref, t);
    wrong.data<float>()[t] = (numerics::exp(-b) + b) - 1.0f;
    EXPECT_NEAR(value(wrong, t), value(right.outputs[0], t), 1e-5f);
  }
  EXPECT_FALSE(same_bytes(right.outputs[0], wrong));
}

struct ValueCase {
  Tensor value, old, returns;
  float clip;
};

ValueCase value_case(std::int64_t n, float clip) {
  ValueCase v{f32_random(n, 6), f32_random(n, 7), f32_random(n, 8), clip};
  for (std::int64_t t = 0; t < n; ++t) {
    if (t % 7 == 1) v.value.data<float>()[t] = value(v.old, t);
    if (t % 7 == 2) v.returns.data<float>()[t] = value(v.value, t);  // no error at all
    if (t % 7 == 4) v.old.data<float>()[t] = value(v.value, t) + 0.01f;
    if (t % 3 == 0) v.value.data<float>()[t] = std::nanf("");  // masked by loss_case
  }
  return v;
}

OpCall ppo_run(const LossCase& c, const ValueCase& v, Kl type, bool all_outputs) {
  return [&c, &v, type, all_outputs](const KernelTable& kernels, Exec& exec) {
    std::vector<Tensor> out;
    for (int i = 0; i < 4; ++i) out.push_back(Tensor(DType::kF32, {c.logp.size()}));
    PpoLossArgs args;
    args.policy.g = out[0];
    args.policy.logp = c.logp;
    args.policy.old = c.old;
    args.policy.ref = c.ref;
    args.policy.advantage = c.advantage;
    args.policy.weight = c.weight;
    args.policy.beta = 0.03f;
    args.policy.kl_type = type;
    args.g_value = out[1];
    if (all_outputs) {
      args.v_loss = out[2];
      args.g_entropy = out[3];
    }
    args.value = v.value;
    args.old_value = v.old;
    args.returns = v.returns;
    args.value_clip = v.clip;
    args.entropy_coef = 0.01f;
    kernels.ppo_loss(exec, args);
    return out;
  };
}

TEST(PpoLossInvariance, EqualsTheReferenceForEveryClipAndSize) {
  for (const float clip : {0.0f, 0.2f, std::numeric_limits<float>::infinity()}) {
    for (const std::int64_t n : {0, 1, 15, 16, 17, 1000, 20011}) {
      const LossCase c = loss_case(n, 0.1);
      const ValueCase v = value_case(n, clip);
      for (const bool all : {false, true}) {
        expect_the_reference_everywhere(ppo_run(c, v, all ? Kl::kK3 : Kl::kNone, all), "ppo_loss",
                                        {}, {1, 3});
      }
    }
  }
}

TEST(PpoLossInvariance, ThePolicyPartHasTheBitsOfGrpoLoss) {
  const LossCase c = loss_case(1000, 0.1);
  const ValueCase v = value_case(1000, 0.2f);
  EXPECT_TRUE(same_bytes(outcome(ppo_run(c, v, Kl::kK3, true), cpu_kernels()).outputs[0],
                         outcome(loss_run(c, Kl::kK3, true), cpu_kernels()).outputs[0]));
}

TEST(PpoLossTwin, ScalingByTheProductOfCoefficientAndWeightGivesOtherBytes) {
  const LossCase c = loss_case(1000, 0.1);
  const ValueCase v = value_case(1000, std::numeric_limits<float>::infinity());
  const Outcome right = outcome(ppo_run(c, v, Kl::kNone, true), cpu_kernels());
  Tensor wrong(DType::kF32, {1000});
  for (std::int64_t t = 0; t < 1000; ++t) {
    const float weight = value(c.weight, t);
    if (weight == 0.0f) continue;
    // With the default coefficient, a power of two, no rounding is left to differ but that of d *
    // w.
    const float d = std::fma(-1.0f, value(v.returns, t), value(v.value, t));
    wrong.data<float>()[t] =
        weight * value(v.value, t) * 0.5f - weight * value(v.returns, t) * 0.5f;
    EXPECT_NEAR(value(right.outputs[1], t), 0.5f * d * weight, 1e-5f);
  }
  EXPECT_FALSE(same_bytes(right.outputs[1], wrong));
}

OpCall adamw_run(const std::vector<Tensor>& state, const Tensor& dw, float grad_scale, float wd) {
  return [&state, &dw, grad_scale, wd](const KernelTable& kernels, Exec& exec) {
    std::vector<Tensor> out = state;  // master, m, v
    out.push_back(Tensor(DType::kBF16, {dw.size()}));
    for (const std::int64_t step : {1, 2, 900}) {
      const numerics::AdamWConstants c = numerics::adamw_constants(0.9, 0.95, 1e-8, 3e-3, wd, step);
      kernels.adamw(exec, {out[3], out[0], out[1], out[2], dw, grad_scale, c.lr, c.b1, c.b2, c.f1,
                           c.f2, c.h1, c.h2, c.eps, c.weight_decay});
    }
    return out;
  };
}

std::vector<Tensor> adamw_state(std::int64_t n, Kind kind) {
  std::vector<Tensor> state{f32_random(n, 1), f32_random(n, 2, kind), f32_random(n, 3, kind)};
  for (std::int64_t i = 0; i < n; ++i) {
    float& v = state[2].data<float>()[i];
    v = std::fabs(v);
  }
  return state;
}

TEST(AdamwInvariance, EqualsTheReferenceForEverySize) {
  for (const Kind kind : kAllKinds) {
    for (const std::int64_t n : {0, 1, 16, 19, 1000, 40001}) {
      const std::vector<Tensor> state = adamw_state(n, kind);
      const Tensor dw = f32_random(n, 4, kind);
      for (const float scale : {1.0f, 0.37f}) {
        expect_the_reference_everywhere(adamw_run(state, dw, scale, 0.1f), "adamw", {}, {1, 2, 4});
      }
    }
  }
}

TEST(AdamwTwin, TwoRoundingsInsteadOfFmaGiveOtherBytes) {
  const std::vector<Tensor> state = adamw_state(1000, Kind::kNormal);
  const Tensor dw = f32_random(1000, 4);
  const Outcome right = outcome(adamw_run(state, dw, 1.0f, 0.0f), cpu_kernels());
  Tensor m = state[1];
  for (const std::int64_t step : {1, 2, 900}) {
    const numerics::AdamWConstants c = numerics::adamw_constants(0.9, 0.95, 1e-8, 3e-3, 0.0, step);
    for (std::int64_t i = 0; i < 1000; ++i) {
      m.data<float>()[i] = c.b1 * m.data<float>()[i] + c.f1 * value(dw, i);
    }
  }
  EXPECT_FALSE(same_bytes(m, right.outputs[1]));
}

OpCall norm_run(const std::vector<Tensor>& grads) {
  return [&grads](const KernelTable& kernels, Exec& exec) {
    std::vector<ConstTensorView> views(grads.begin(), grads.end());
    std::vector<Tensor> out;
    out.push_back(Tensor(DType::kF32, {1}));
    kernels.grad_norm(exec, {out[0].data<float>(), views.data(), std::ssize(views)});
    return out;
  };
}

std::vector<Tensor> grads_of(Kind kind, double scale) {
  std::vector<Tensor> grads;
  grads.push_back(f32_random(1, 1, kind, scale));
  grads.push_back(random_tensor(DType::kF32, {3, 77}, 2, kind, scale));
  grads.push_back(random_tensor(DType::kF32, {150, 1001}, 3, kind, scale));
  grads.push_back(Tensor(DType::kF32, {0}));
  return grads;
}

TEST(GradNormInvariance, EqualsTheReferenceForEveryKindAndScale) {
  for (const Kind kind : kAllKinds) {
    for (const double scale : {1.0, 0x1p-126, 0x1p-145, 0x1p70}) {
      expect_the_reference_everywhere(norm_run(grads_of(kind, scale)), "grad_norm");
    }
  }
  expect_the_reference_everywhere(norm_run({}), "grad_norm of nothing");
}

TEST(GradNorm, ReportsNumbersThatAreNotFinite) {
  for (const float bad :
       {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN(),
        std::numeric_limits<float>::max()}) {  // the norm of two overflows
    std::vector<Tensor> grads = grads_of(Kind::kNormal, 1.0);
    grads[2].data<float>()[150000] = bad;
    grads[2].data<float>()[150001] = bad;
    expect_the_reference_everywhere(norm_run(grads), "grad_norm");
    EXPECT_EQ(outcome(norm_run(grads), cpu_kernels()).fault_row, 0);
  }
}

TEST(GradNormTwin, ASumOfSquaresInFloatGivesOtherBytes) {
  const std::vector<Tensor> grads = grads_of(Kind::kWide, 1.0);
  float sum = 0.0f;
  for (const Tensor& grad : grads) {
    for (std::int64_t i = 0; i < grad.size(); ++i)
      sum = std::fma(value(grad, i), value(grad, i), sum);
  }
  const Outcome right = outcome(norm_run(grads), cpu_kernels());
  EXPECT_NE(value(right.outputs[0], 0), std::sqrt(sum));
  EXPECT_NEAR(value(right.outputs[0], 0), std::sqrt(sum), 1e-3f * std::sqrt(sum));
}

}  // namespace
}  // namespace rlk::test
