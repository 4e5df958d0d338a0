#include "rlk/trainer/loss.h"

namespace rlk {
namespace {

// f32 arrays of the micro-batch's response tokens, gathered from its samples.
struct Gathered {
  float* old;
  float* advantage;
  float* weight;
};

Gathered gather(const LossArgs& a, Workspace::Frame& frame, std::int64_t n) {
  const Gathered out{frame.take<float>(n), frame.take<float>(n), frame.take<float>(n)};
  std::int64_t row = 0;
  for (std::size_t i = 0; i < a.samples.size(); ++i) {
    const TrainSample& s = a.samples[i];
    for (std::int64_t t = 0; t < s.response_len(); ++t, ++row) {
      out.old[row] = s.old_logprobs[t];
      out.advantage[row] = s.advantage;
      out.weight[row] = a.weights[i][t];
    }
  }
  RLK_ASSERT(row == n);
  return out;
}

}  // namespace

std::vector<std::vector<float>> token_weights(std::span<const TrainSample> samples,
                                              Averaging averaging) {
  std::int64_t active_tokens = 0, active_samples = 0;
  std::vector<std::int64_t> own(samples.size(), 0);
  for (std::size_t i = 0; i < samples.size(); ++i) {
    for (std::uint8_t a : samples[i].active) own[i] += a != 0;
    active_tokens += own[i];
    active_samples += own[i] > 0;
  }
  std::vector<std::vector<float>> out(samples.size());
  for (std::size_t i = 0; i < samples.size(); ++i) {
    const double count = averaging == Averaging::kToken
                             ? static_cast<double>(active_tokens)
                             : static_cast<double>(active_samples) * static_cast<double>(own[i]);
    for (std::uint8_t a : samples[i].active) {
      out[i].push_back(a ? static_cast<float>(1.0 / count) : 0.0f);
    }
  }
  return out;
}

void loss_gradient(Context& ctx, const LossOptions& options, const LossArgs& a, LossSums& sums) {
  const std::int64_t n = a.logp.shape(0);
  Workspace::Frame frame(ctx.small_workspace());
  const Gathered in = gather(a, frame, n);
  const float* logp = a.logp.at<float>();
  float* g = a.g.at<float>();
  if (options.type == LossType::kSft) {
    for (std::int64_t t = 0; t < n; ++t) {
      g[t] = in.weight[t] != 0 ? -in.weight[t] : 0.0f;
      if (in.weight[t] == 0) continue;
      sums.loss += static_cast<double>(in.weight[t]) * -static_cast<double>(logp[t]);
      sums.active += 1;
    }
    return;
  }

  GrpoLossArgs args;
  args.g = a.g;
  args.pg_loss = view(frame.take<float>(n), {n});
  args.kl = view(frame.take<float>(n), {n});
  args.ratio = view(frame.take<float>(n), {n});
  args.logp = a.logp;
  args.old = view(in.old, {n});
  args.ref = a.ref;
  args.advantage = view(in.advantage, {n});
  args.weight = view(in.weight, {n});
  args.lo = static_cast<float>(1.0 - options.clip_low);
  args.hi = static_cast<float>(1.0 + options.clip_high);
  args.beta = static_cast<float>(options.kl_coef);
  args.kl_type = options.kl;
  grpo_loss(ctx, args);
  ctx.synchronize();

  const auto entropy_coef = static_cast<float>(options.entropy_coef);
  const float* pg = args.pg_loss.at<float>();
  const float* kl = args.kl.at<float>();
  const float* ratio = args.ratio.at<float>();
  for (std::int64_t t = 0; t < n; ++t) {
    const float weight = in.weight[t];
    if (entropy_coef != 0) {
      a.g_entropy.at<float>()[t] = weight != 0 ? -(entropy_coef * weight) : 0.0f;
    }
    if (weight == 0) continue;
    const double kl_value = options.kl == Kl::kNone ? 0.0 : static_cast<double>(kl[t]);
    const double entropy = a.entropy ? static_cast<double>(a.entropy.at<float>()[t]) : 0.0;
    sums.loss +=
        static_cast<double>(weight) *
        (static_cast<double>(pg[t]) + options.kl_coef * kl_value - options.entropy_coef * entropy);
    sums.kl += kl_value;
    sums.entropy += entropy;
    sums.clipped +=
        (in.advantage[t] > 0 && ratio[t] > args.hi) || (in.advantage[t] < 0 && ratio[t] < args.lo);
    sums.active += 1;
  }
}

}  // namespace rlk
