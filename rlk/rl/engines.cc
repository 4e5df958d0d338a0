#include "rlk/rl/engines.h"

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "rlk/core/digest.h"
#include "rlk/core/error.h"
#include "rlk/ops/backend.h"

namespace rlk {
namespace {

Kl loss_kl(RlConfig::Kl kl) { return parse_kl(to_string(kl)); }

LrSchedule lr_schedule(RlConfig::LrSchedule schedule) {
  switch (schedule) {
    case RlConfig::LrSchedule::kConstant: return LrSchedule::kConstant;
    case RlConfig::LrSchedule::kLinear: return LrSchedule::kLinear;
    case RlConfig::LrSchedule::kCosine: return LrSchedule::kCosine;
  }
  return LrSchedule::kConstant;
}

}  // namespace

Modes engine_modes(const RlConfig& config, Engine engine) {
  Modes modes = all_ops(config.route == RlConfig::Route::kStrict ? Mode::kStrict : Mode::kOff);
  const RlConfig::Modes& overrides =
      engine == Engine::kRollout ? config.modes.rollout : config.modes.trainer;
  for (const auto& [op, mode] : overrides) {
    modes[static_cast<int>(parse_op(op))] = parse_mode(mode);
  }
  return modes;
}

const KernelTable& engine_kernels(const RlConfig& config, Engine engine) {
  return find_backend(engine == Engine::kRollout ? config.rollout.backend : config.trainer.backend,
                      config.contract.profile);
}

RolloutOptions rollout_options(const RlConfig& c, std::int64_t max_model_len) {
  RolloutOptions o;
  o.max_model_len = max_model_len;
  o.max_num_seqs = c.rollout.max_num_seqs;
  o.max_num_batched_tokens = c.rollout.max_num_batched_tokens;
  o.page_size = c.rollout.page_size;
  o.num_pages = c.rollout.num_pages;
  o.prefix_cache = c.rollout.prefix_cache;
  o.graphs = c.rollout.graphs;
  o.vendor_products = c.rollout.vendor_products;
  return o;
}

TrainerOptions trainer_options(const RlConfig& c, std::int64_t max_model_len) {
  TrainerOptions o;
  o.max_model_len = max_model_len;
  o.micro_batch_tokens = c.trainer.micro_batch_tokens;
  o.loss.clip_low = c.loss.clip_low;
  o.loss.clip_high = c.loss.clip_high;
  o.loss.kl = loss_kl(c.loss.kl);
  o.loss.kl_coef = c.loss.kl_coef;
  o.loss.entropy_coef = c.loss.entropy_coef;
  o.loss.averaging =
      c.loss.averaging == RlConfig::Averaging::kToken ? Averaging::kToken : Averaging::kSample;
  o.optimizer.learning_rate = c.trainer.learning_rate;
  o.optimizer.lr_schedule = lr_schedule(c.trainer.lr_schedule);
  o.optimizer.warmup_steps = c.trainer.warmup_steps;
  o.optimizer.total_steps = static_cast<std::int64_t>(c.steps) * c.trainer.minibatches;
  o.optimizer.adam_beta1 = c.trainer.adam_beta1;
  o.optimizer.adam_beta2 = c.trainer.adam_beta2;
  o.optimizer.adam_eps = c.trainer.adam_eps;
  o.optimizer.weight_decay = c.trainer.weight_decay;
  o.optimizer.max_grad_norm = c.trainer.max_grad_norm;
  return o;
}

SamplingParams sampling_params(const RlConfig& c) {
  SamplingParams p;
  p.temperature = static_cast<float>(c.rollout.temperature);
  p.top_k = c.rollout.top_k;
  p.top_p = static_cast<float>(c.rollout.top_p);
  p.min_p = static_cast<float>(c.rollout.min_p);
  return p;
}

std::string deployment_digest(const RlConfig& c, const std::string& rollout_backend,
                              const std::string& trainer_backend) {
  const nlohmann::json plans = {
      {"rollout_backend", rollout_backend},
      {"trainer_backend", trainer_backend},
      {"graphs", c.rollout.graphs},
      {"max_num_batched_tokens", c.rollout.max_num_batched_tokens},
      {"max_num_seqs", c.rollout.max_num_seqs},
      {"micro_batch_tokens", c.trainer.micro_batch_tokens},
      {"num_pages", c.rollout.num_pages},
      {"page_size", c.rollout.page_size},
      {"prefix_cache", c.rollout.prefix_cache},
      {"rollout_threads", c.rollout.threads},
      {"trainer_threads", c.trainer.threads},
      {"vendor_products", c.rollout.vendor_products},
  };
  return sha256_hex(plans.dump());
}

void check_handshake(const Contract& rollout, const Contract& trainer) {
  if (forward_digest(rollout) == forward_digest(trainer)) return;
  fail(ErrorCode::kContract, "rollout and trainer follow different contracts: {}",
       fmt::join(differences(rollout, trainer), "; "));
}

}  // namespace rlk
