// grpo_loss, adamw and grad_norm of the CPU backend against the reference, byte for byte.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "rlk/numerics/adamw.h"
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
