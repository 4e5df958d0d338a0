// Reference kernels of an optimizer step: the loss, the gradient norm, AdamW.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "reference_gradient.h"
#include "rlk/kernels/reference/table.h"
#include "rlk/numerics/math.h"
#include "test_data.h"

namespace rlk::test {
namespace {

struct LossCase {
  std::vector<float> logp, old, ref, advantage, weight;
};

LossCase loss_case() {
  LossCase c;
  Rng rng(91);
  for (int i = 0; i < 200; ++i) {
    const double logp = -3.0 * rng.uniform();
    c.logp.push_back(static_cast<float>(logp));
    c.old.push_back(static_cast<float>(logp + 0.3 * rng.normal()));
    c.ref.push_back(static_cast<float>(logp + 0.3 * rng.normal()));
    c.advantage.push_back(i % 9 == 0 ? 0.0f : static_cast<float>(rng.normal()));
    c.weight.push_back(i % 7 == 0 ? 0.0f : 0.01f);
  }
  return c;
}

struct LossOutput {
  Tensor g, pg_loss, kl, ratio;
  std::int64_t fault;
};

LossOutput run(const LossCase& c, Kl kl_type, float beta) {
  const auto n = static_cast<std::int64_t>(c.logp.size());
  LossOutput out{Tensor(DType::kF32, {n}), Tensor(DType::kF32, {n}), Tensor(DType::kF32, {n}),
                 Tensor(DType::kF32, {n}), -1};
  TestExec exec;
  GrpoLossArgs args;
  args.g = out.g;
  args.pg_loss = out.pg_loss;
  args.kl = out.kl;
  args.ratio = out.ratio;
  args.logp = view(c.logp.data(), {n});
  args.old = view(c.old.data(), {n});
  if (kl_type != Kl::kNone) args.ref = view(c.ref.data(), {n});
  args.advantage = view(c.advantage.data(), {n});
  args.weight = view(c.weight.data(), {n});
  args.beta = beta;
  args.kl_type = kl_type;
  reference::grpo_loss(exec, args);
  out.fault = exec.fault.row();
  return out;
}

// The loss of one token, from the definition: -min(r A, clip(r) A) + beta KL.
double token_loss(double logp, double old, double ref, double a, Kl kl_type, double beta) {
  const double r = std::exp(logp - old);
  const double b = logp - ref;
  double kl = 0.0;
  if (kl_type == Kl::kK1) kl = b;
  if (kl_type == Kl::kK2) kl = 0.5 * b * b;
  if (kl_type == Kl::kK3) kl = std::exp(-b) - 1.0 + b;
  return -std::min(r * a, std::clamp(r, double{0.8f}, double{1.2f}) * a) + beta * kl;
}

TEST(GrpoLoss, AgreesWithTheDefinitionAndItsDerivative) {
  const LossCase c = loss_case();
  for (const Kl kl_type : {Kl::kNone, Kl::kK1, Kl::kK2, Kl::kK3}) {
    const LossOutput out = run(c, kl_type, 0.25f);
    EXPECT_EQ(out.fault, -1);
    int clipped = 0;
    for (std::size_t i = 0; i < c.logp.size(); ++i) {
      const auto at = static_cast<std::int64_t>(i);
      const auto loss = [&](double x) {
        return token_loss(x, c.old[i], c.ref[i], c.advantage[i], kl_type, 0.25);
      };
      if (c.weight[i] == 0.0f) {
        for (const Tensor* t : {&out.g, &out.pg_loss, &out.kl, &out.ratio}) {
          EXPECT_EQ(numerics::compare_bits(t->data<float>() + i, std::vector<float>{0.0f}.data(), 1)
                        .mismatch_count,
                    0);
        }
        continue;
      }
      const double x = c.logp[i];
      const double slope = (loss(x + 1e-6) - loss(x - 1e-6)) / 2e-6;
      EXPECT_NEAR(value(out.g, at), 0.01f * slope, 1e-7) << i;
      EXPECT_NEAR(value(out.pg_loss, at) + 0.25 * value(out.kl, at), loss(x), 1e-5);
      EXPECT_NEAR(value(out.ratio, at), std::exp(x - c.old[i]), 1e-5);
      clipped += c.advantage[i] != 0.0f && slope == 0.0;
    }
    EXPECT_GT(clipped, kl_type == Kl::kNone ? 10 : -1);
  }
}

TEST(GrpoLoss, MatchesValuesComputedByHand) {
  const LossCase c{{0.0f, 0.0f, 0.0f},
                   {0.0f, -1.0f, 0.0f},
                   {-1.0f, 0.0f, 0.0f},
                   {2.0f, 1.0f, 0.0f},
                   {0.5f, 0.5f, 1.0f}};
  const LossOutput out = run(c, Kl::kK2, 0.5f);
  EXPECT_EQ(value(out.g, 0), (0.5f * 1.0f - 2.0f) * 0.5f);
  EXPECT_EQ(value(out.pg_loss, 0), -2.0f);
  EXPECT_EQ(value(out.kl, 0), 0.5f);
  EXPECT_EQ(value(out.g, 1), 0.0f);  // r = e > hi with A > 0
  EXPECT_EQ(value(out.pg_loss, 1), -1.2f);
  EXPECT_EQ(value(out.ratio, 1), 2.7182817f);
}

TEST(GrpoLoss, MaskedTokensAreNotLookedAtAndOthersAreReported) {
  const float nan = std::nanf("");
  LossCase c{{nan, -1.0f, -1.0f},
             {nan, -1.0f, -200.0f},
             {nan, 0.0f, 0.0f},
             {nan, 1.0f, -1.0f},
             {0.0f, 1.0f, 1.0f}};
  const LossOutput out = run(c, Kl::kK3, 0.1f);
  EXPECT_EQ(value(out.g, 0), 0.0f);
  EXPECT_EQ(out.fault, 2);  // exp(199) is infinite
}

TEST(Ratio, MatchesValuesComputedByHandAndReportsTheFirstThatIsNotFinite) {
  TestExec exec;
  Tensor out(DType::kF32, {4});
  const Tensor logp = f32_tensor({-1.0f, 0.0f, std::nanf(""), 100.0f});
  const Tensor old = f32_tensor({-1.0f, -1.0f, 0.0f, 0.0f});
  Tensor weight = f32_tensor({1.0f, 0.5f, -0.0f, 0.0f});
  reference::ratio(exec, {out, logp, old, weight});
  EXPECT_EQ(value(out, 0), 1.0f);
  EXPECT_EQ(value(out, 1), 2.7182817f);
  EXPECT_EQ(std::bit_cast<std::uint32_t>(value(out, 2)), 0u);
  EXPECT_EQ(exec.fault.row(), -1);
  weight.data<float>()[3] = 1.0f;
  reference::ratio(exec, {out, logp, old, weight});
  EXPECT_EQ(exec.fault.row(), 3);
  reference::ratio(exec, {out, logp, old, {}});
  EXPECT_EQ(exec.fault.row(), 2);
}

TEST(KlEstimates, AgreeWithTheirDefinitionsAndSlopes) {
  const std::vector<float> at = {-3.0f, -0.25f, 0.0f, 0.01f, 2.0f};
  const auto n = static_cast<std::int64_t>(at.size());
  const Tensor logp = f32_tensor(at), ref(DType::kF32, {n});
  for (const Kl type : {Kl::kNone, Kl::kK1, Kl::kK2, Kl::kK3}) {
    TestExec exec;
    Tensor kl(DType::kF32, {n}), slope(DType::kF32, {n});
    reference::kl(exec, {kl, slope, logp, ref, {}, type});
    for (std::int64_t i = 0; i < n; ++i) {
      const auto definition = [&](double b) { return token_loss(b, b, 0.0, 0.0, type, 1.0); };
      const double b = value(logp, i);
      EXPECT_NEAR(value(kl, i), definition(b), 1e-6) << i;
      EXPECT_NEAR(value(slope, i), (definition(b + 1e-6) - definition(b - 1e-6)) / 2e-6, 1e-5);
    }
    EXPECT_EQ(exec.fault.row(), -1);
    const Tensor far = f32_tensor({-200.0f});
    Tensor one(DType::kF32, {1});
    reference::kl(exec, {one, {}, far, f32_tensor({0.0f}), {}, type});
    EXPECT_EQ(exec.fault.row(), type == Kl::kK3 ? 0 : -1);
  }
}

struct ValueOutput {
  Tensor g, g_value, v_loss, g_entropy;
  std::int64_t fault;
};

ValueOutput run_value(const std::vector<float>& v, const std::vector<float>& old,
                      const std::vector<float>& returns, const std::vector<float>& weight,
                      float clip) {
  const auto n = static_cast<std::int64_t>(v.size());
  const Tensor zero(DType::kF32, {n});
  const auto empty = [n] { return Tensor(DType::kF32, {n}); };
  ValueOutput out{empty(), empty(), empty(), empty(), -1};
  TestExec exec;
  PpoLossArgs args;
  args.policy.g = out.g;
  args.policy.logp = args.policy.old = args.policy.advantage = zero;
  args.policy.weight = view(weight.data(), {n});
  args.g_value = out.g_value;
  args.v_loss = out.v_loss;
  args.g_entropy = out.g_entropy;
  args.value = view(v.data(), {n});
  args.old_value = view(old.data(), {n});
  args.returns = view(returns.data(), {n});
  args.value_clip = clip;
  args.value_coef = 0.5f;
  args.entropy_coef = 0.25f;
  reference::ppo_loss(exec, args);
  out.fault = exec.fault.row();
  return out;
}

TEST(PpoLoss, MatchesValuesComputedByHand) {
  // Outside the clip on the far side of the return, outside on its near side, inside, masked.
  const ValueOutput out = run_value({2.0f, 2.0f, 1.125f, std::nanf("")}, {1.0f, 1.0f, 1.0f, 0.0f},
                                    {3.0f, 0.0f, 3.0f, 0.0f}, {0.5f, 0.5f, 1.0f, 0.0f}, 0.25f);
  EXPECT_EQ(value(out.v_loss, 0), 0.5f * 1.75f * 1.75f);  // the clipped value is further away
  EXPECT_EQ(value(out.g_value, 0), 0.0f);
  EXPECT_EQ(value(out.v_loss, 1), 2.0f);
  EXPECT_EQ(value(out.g_value, 1), 0.5f * 2.0f * 0.5f);
  EXPECT_EQ(value(out.v_loss, 2), 0.5f * 1.875f * 1.875f);
  EXPECT_EQ(value(out.g_value, 2), 0.5f * -1.875f);
  EXPECT_EQ(value(out.g_entropy, 0), -0.125f);
  for (const Tensor* t : {&out.g, &out.g_value, &out.v_loss, &out.g_entropy}) {
    EXPECT_EQ(std::bit_cast<std::uint32_t>(value(*t, 3)), 0u);
  }
  EXPECT_EQ(out.fault, -1);
  EXPECT_EQ(run_value({1.0f, 0x1p127f}, {0.0f, 0.0f}, {0.0f, -0x1p127f}, {1.0f, 4.0f}, 0.1f).fault,
            1);
}

TEST(PpoLoss, TheValueGradientAgreesWithFiniteDifferences) {
  Rng rng(5);
  std::vector<float> v, old, returns, weight(200, 0.01f);
  for (int i = 0; i < 200; ++i) {
    old.push_back(static_cast<float>(rng.normal()));
    v.push_back(old.back() + 0.3f * static_cast<float>(rng.normal()));
    returns.push_back(old.back() + static_cast<float>(rng.normal()));
  }
  for (const float clip : {0.2f, std::numeric_limits<float>::infinity()}) {
    const ValueOutput out = run_value(v, old, returns, weight, clip);
    const auto loss = [&](const Values& at) {
      double sum = 0.0;
      for (std::size_t i = 0; i < at.size(); ++i) {
        const double held =
            std::clamp(at[i], double{old[i]} - double{clip}, double{old[i]} + double{clip});
        sum += 0.01 * 0.5 * 0.5 *
               std::max(std::pow(at[i] - returns[i], 2), std::pow(held - returns[i], 2));
      }
      return sum;
    };
    expect_close(out.g_value, numeric_gradient(loss, Values(v.begin(), v.end())), 1e-5);
  }
}

float grad_norm(const std::vector<const Tensor*>& tensors, std::int64_t* fault = nullptr) {
  TestExec exec;
  std::vector<ConstTensorView> views;
  for (const Tensor* t : tensors) views.push_back(t->view());
  float norm = -1.0f;
  reference::grad_norm(exec, {&norm, views.data(), static_cast<std::int64_t>(views.size())});
  if (fault != nullptr) *fault = exec.fault.row();
  return norm;
}

TEST(GradNorm, MatchesValuesComputedByHand) {
  const Tensor a = f32_tensor({3.0f, 0.0f, -0.0f});
  const Tensor b = f32_tensor({-4.0f});
  EXPECT_EQ(grad_norm({&a, &b}), 5.0f);
  EXPECT_EQ(grad_norm({&b}), 4.0f);
  EXPECT_EQ(grad_norm({}), 0.0f);
  const Tensor large = f32_tensor({0x1p100f, 0x1p100f});
  EXPECT_EQ(grad_norm({&large}), static_cast<float>(std::sqrt(2.0) * 0x1p100));
}

TEST(GradNorm, ReportsElementsThatAreNotFinite) {
  for (const float bad : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
    const Tensor a = f32_tensor({1.0f, bad});
    std::int64_t fault = -1;
    grad_norm({&a}, &fault);
    EXPECT_EQ(fault, 0);
  }
}

TEST(GradNormInvariance, TensorsInAnyOrderGiveTheSameBits) {
  const Tensor a = random_tensor(DType::kF32, {1000}, 92, Kind::kWide);
  const Tensor b = random_tensor(DType::kF32, {777}, 93, Kind::kMixed);
  const Tensor c = random_tensor(DType::kF32, {10, 10}, 94);
  EXPECT_EQ(grad_norm({&a, &b, &c}), grad_norm({&c, &a, &b}));
  double sum = 0.0;
  for (const Tensor* t : {&a, &b, &c}) sum += dot(values(*t), values(*t));
  EXPECT_NEAR(grad_norm({&a, &b, &c}) / std::sqrt(sum), 1.0, 1e-6);
}

TEST(GradNormTwin, AFloatSumInAnotherOrderGivesOtherBits) {
  const Tensor a = random_tensor(DType::kF32, {1000}, 95);
  float rising = 0.0f, falling = 0.0f;
  for (std::int64_t i = 0; i < 1000; ++i) {
    rising += value(a, i) * value(a, i);
    falling += value(a, 999 - i) * value(a, 999 - i);
  }
  EXPECT_NE(rising, falling);
}

TEST(Adamw, AgreesWithTheFormulaInDouble) {
  const std::int64_t n = 50;
  Tensor master = random_tensor(DType::kF32, {n}, 96);
  Tensor w(DType::kBF16, {n}), m(DType::kF32, {n}), v(DType::kF32, {n});
  const Tensor dw = random_tensor(DType::kF32, {n}, 97);
  Values w64 = values(master), m64(n), v64(n);
  TestExec exec;
  for (int step = 1; step <= 3; ++step) {
    AdamwArgs args{.w = w, .master = master, .m = m, .v = v, .dw = dw};
    args.grad_scale = 0.5f;
    args.lr = 1e-2f;
    args.b1 = 0.9f;
    args.b2 = 0.99f;
    args.f1 = 0.1f;
    args.f2 = 0.01f;
    args.h1 = static_cast<float>(1.0 - std::pow(0.9, step));
    args.h2 = static_cast<float>(1.0 - std::pow(0.99, step));
    args.eps = 1e-8f;
    args.wd = 0.1f;
    reference::adamw(exec, args);
    for (std::size_t i = 0; i < n; ++i) {
      const double g = 0.5 * value(dw, static_cast<int>(i));
      m64[i] = 0.9 * m64[i] + 0.1 * g;
      v64[i] = 0.99 * v64[i] + 0.01 * g * g;
      const double u = m64[i] / (1.0 - std::pow(0.9, step)) /
                       (std::sqrt(v64[i] / (1.0 - std::pow(0.99, step))) + 1e-8);
      w64[i] -= 1e-2 * (u + 0.1 * w64[i]);
    }
  }
  for (std::int64_t i = 0; i < n; ++i) {
    EXPECT_NEAR(value(master, i), w64[static_cast<std::size_t>(i)], 1e-5);
    EXPECT_EQ(value(w, i), numerics::round_bf16(value(master, i)));
  }
}

TEST(Adamw, MatchesValuesComputedByHand) {
  TestExec exec;
  Tensor w(DType::kBF16, {1});
  Tensor master = f32_tensor({1.0f}), m = f32_tensor({0.0f}), v = f32_tensor({0.0f});
  const Tensor dw = f32_tensor({2.0f});
  AdamwArgs args{.w = w, .master = master, .m = m, .v = v, .dw = dw};
  args.b1 = args.f1 = args.h1 = 0.5f;
  args.b2 = args.f2 = args.h2 = 0.5f;
  args.lr = 0.25f;
  args.wd = 1.0f;
  reference::adamw(exec, args);
  EXPECT_EQ(value(m, 0), 1.0f);
  EXPECT_EQ(value(v, 0), 2.0f);
  EXPECT_EQ(value(master, 0), 0.5f);  // u = 1, 1 - 0.25 * (1 + 1)
  EXPECT_EQ(value(w, 0), 0.5f);
}

}  // namespace
}  // namespace rlk::test
