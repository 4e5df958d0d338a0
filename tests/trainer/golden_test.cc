// Loss, clipping and AdamW against float64 results of an independent implementation.
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "rlk/io/files.h"
#include "rlk/ops/adamw.h"
#include "rlk/trainer/loss.h"
#include "tests/model/tiny_model.h"

namespace rlk::test {
namespace {

using nlohmann::json;

json golden(const std::string& name) {
  return json::parse(read_file(std::string(RLK_SOURCE_DIR) + "/tests/goldens/oracle/" + name));
}

void expect_near(const std::vector<float>& actual, const json& expected, const json& bounds,
                 const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    EXPECT_NEAR(actual[i], expected[i].get<double>(), bounds[i].get<double>()) << what << " " << i;
  }
}

TEST(PolicyLoss, IsWithinTheBoundsForEveryKlAndAveraging) {
  const json file = golden("policy_loss.json");
  std::vector<TrainSample> samples;
  std::vector<float> logp, ref;
  for (const json& s : file.at("samples")) {
    TrainSample sample;
    sample.prompt_len = 1;
    sample.old_logprobs = s.at("old").get<std::vector<float>>();
    sample.active = s.at("mask").get<std::vector<std::uint8_t>>();
    sample.token_ids.assign(1 + sample.active.size(), 0);
    sample.advantage = s.at("advantage").get<float>();
    for (float x : s.at("logp").get<std::vector<float>>()) logp.push_back(x);
    for (float x : s.at("ref").get<std::vector<float>>()) ref.push_back(x);
    samples.push_back(std::move(sample));
  }
  const auto n = static_cast<std::int64_t>(logp.size());
  Context ctx({}, all_ops(Mode::kStrict), 1);
  for (const json& c : file.at("cases")) {
    const std::string kl = c.at("kl"), averaging = c.at("averaging");
    LossOptions options;
    options.kl = parse_kl(kl);
    options.kl_coef = c.at("beta");
    options.averaging = averaging == "token" ? Averaging::kToken : Averaging::kSample;
    options.clip_low = 1.0 - c.at("ratio_low").get<double>();
    options.clip_high = c.at("ratio_high").get<double>() - 1.0;
    const std::vector<std::vector<float>> weights = token_weights(samples, options.averaging);
    std::vector<float> g(logp.size(), NAN);
    LossArgs args;
    args.g = view(g.data(), {n});
    args.logp = view(std::as_const(logp).data(), {n});
    args.ref = view(std::as_const(ref).data(), {n});
    args.samples = samples;
    args.weights = weights;
    LossSums sums;
    loss_gradient(ctx, options, args, sums);
    const std::string what = kl + " " + averaging;
    EXPECT_NEAR(sums.loss, c.at("loss").get<double>(), c.at("loss_bound").get<double>()) << what;
    std::size_t row = 0;
    for (std::size_t s = 0; s < samples.size(); ++s) {
      const std::vector<float> own(
          g.begin() + static_cast<std::ptrdiff_t>(row),
          g.begin() + static_cast<std::ptrdiff_t>(row + samples[s].active.size()));
      expect_near(own, c.at("dloss_dlogp")[s], c.at("dloss_dlogp_bound")[s], what);
      row += samples[s].active.size();
    }
  }
}

TEST(AdamW, FollowsTheFloat64Trajectory) {
  Context ctx({}, all_ops(Mode::kStrict), 1);
  const json goldens = golden("adamw.json");
  for (const json& c : goldens.at("adamw")) {
    Tensor master = f32_tensor(c.at("w").get<std::vector<float>>());
    const std::int64_t n = master.size();
    Tensor m(DType::kF32, {n}), v(DType::kF32, {n}), w(DType::kBF16, {n});
    const double b1 = c.at("beta1"), b2 = c.at("beta2");
    double power1 = 1, power2 = 1;
    for (std::size_t step = 0; step < c.at("steps").size(); ++step) {
      power1 *= b1;
      power2 *= b2;
      const Tensor gradient = f32_tensor(c.at("gradients")[step].get<std::vector<float>>());
      AdamwArgs args;
      args.w = w;
      args.master = master;
      args.m = m;
      args.v = v;
      args.dw = gradient;
      args.lr = c.at("lr").get<float>();
      args.b1 = static_cast<float>(b1);
      args.b2 = static_cast<float>(b2);
      args.f1 = static_cast<float>(1 - b1);
      args.f2 = static_cast<float>(1 - b2);
      args.h1 = static_cast<float>(1 - power1);
      args.h2 = static_cast<float>(1 - power2);
      args.eps = c.at("eps").get<float>();
      args.wd = c.at("weight_decay").get<float>();
      adamw(ctx, args);
      const auto floats = [&](const Tensor& t) {
        return std::vector<float>(t.data<float>(), t.data<float>() + n);
      };
      const std::string what = "step " + std::to_string(step + 1);
      expect_near(floats(master), c.at("steps")[step].at("w"), c.at("w_bound"), what + " w");
      expect_near(floats(m), c.at("steps")[step].at("m"), c.at("m_bound"), what + " m");
      expect_near(floats(v), c.at("steps")[step].at("v"), c.at("v_bound"), what + " v");
    }
  }
}

TEST(GradNorm, ClipsAsTorchDoes) {
  Context ctx({}, all_ops(Mode::kStrict), 1);
  const json goldens = golden("adamw.json");
  for (const json& c : goldens.at("clip")) {
    std::vector<Tensor> gradients;
    for (const json& g : c.at("gradients")) {
      gradients.push_back(f32_tensor(g.get<std::vector<float>>()));
    }
    const std::vector<ConstTensorView> views(gradients.begin(), gradients.end());
    float norm = 0;
    grad_norm(ctx, {&norm, views.data(), static_cast<std::int64_t>(views.size())});
    const double bound = c.at("relative_bound"), expected = c.at("norm");
    EXPECT_NEAR(norm, expected, bound * expected);
    const auto max_norm = c.at("max_norm").get<float>();
    const float scale = norm > max_norm ? max_norm / norm : 1.0f;
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      for (std::int64_t k = 0; k < gradients[i].size(); ++k) {
        const double clipped = c.at("clipped")[i][static_cast<std::size_t>(k)];
        EXPECT_NEAR(scale * gradients[i].data<float>()[k], clipped, bound * std::abs(clipped));
      }
    }
  }
}

}  // namespace
}  // namespace rlk::test
