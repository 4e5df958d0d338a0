#include "rlk/trainer/optimizer.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "rlk/numerics/bf16.h"
#include "rlk/ops/adamw.h"
#include "rlk/ops/residual_add.h"

namespace rlk {
namespace {

TensorView flat(Tensor& t) { return {t.view().data, t.dtype(), Layout({t.size()})}; }

}  // namespace

double learning_rate(const OptimizerOptions& o, std::int64_t step) {
  if (step <= o.warmup_steps) {
    return o.learning_rate * static_cast<double>(step) / static_cast<double>(o.warmup_steps);
  }
  if (o.lr_schedule == LrSchedule::kConstant) return o.learning_rate;
  const double length = static_cast<double>(o.total_steps - o.warmup_steps);
  const double done = length > 0 ? static_cast<double>(step - 1 - o.warmup_steps) / length : 0.0;
  if (o.lr_schedule == LrSchedule::kLinear) return o.learning_rate * std::max(0.0, 1.0 - done);
  // A cosine by its own series, so that no library's last bit decides the rate.
  const double x = std::numbers::pi * std::min(done, 1.0);
  double term = 1, cosine = 1;
  for (int k = 1; k <= 16; ++k) {
    term *= -x * x / static_cast<double>((2 * k - 1) * (2 * k));
    cosine += term;
  }
  return o.learning_rate * 0.5 * (1.0 + cosine);
}

Optimizer::Optimizer(const ModelConfig& config, std::int64_t vocab_padded,
                     const OptimizerOptions& options, Parameters& weights, Memory& memory)
    : config_(config), options_(options) {
  for (Parameters* p : {&state_.master, &state_.m, &state_.v}) {
    *p = make_parameters(config, vocab_padded, DType::kF32, false, memory);
  }
  const std::vector<ParameterRef> from = list(weights);
  const std::vector<ParameterRef> to = list(state_.master);
  RLK_ASSERT(from.size() == to.size());
  for (std::size_t i = 0; i < from.size(); ++i) {
    for (std::int64_t k = 0; k < from[i].tensor->size(); ++k) {
      to[i].tensor->data<float>()[k] = numerics::to_f32(from[i].tensor->data<bf16>()[k]);
    }
  }
}

OptimizerStepStats Optimizer::step(Context& ctx, Parameters& gradient, Parameters& weights) {
  ctx.set_node(-1, nullptr);
  if (config_.tie_word_embeddings) {
    const TensorView embedding = as_row(gradient.embed_tokens);
    residual_add(ctx, {embedding, as_row(gradient.lm_head), embedding});
  }
  std::vector<ParameterRef> grads = list(gradient);
  if (config_.tie_word_embeddings) grads.pop_back();  // lm_head, now inside embed_tokens
  std::vector<ConstTensorView> views;
  for (const ParameterRef& g : grads) views.push_back(*g.tensor);
  Workspace::Frame frame(ctx.small_workspace());
  float* const found = frame.take<float>(1);
  grad_norm(ctx, {found, views.data(), std::ssize(views)});
  ctx.synchronize();
  const float norm = *found;

  const auto max_norm = static_cast<float>(options_.max_grad_norm);
  state_.step += 1;
  state_.beta1_power *= options_.adam_beta1;
  state_.beta2_power *= options_.adam_beta2;
  const double rate = learning_rate(options_, state_.step);
  AdamwArgs args;
  args.grad_scale = max_norm > 0 && norm > max_norm ? max_norm / norm : 1.0f;
  args.lr = static_cast<float>(rate);
  args.b1 = static_cast<float>(options_.adam_beta1);
  args.b2 = static_cast<float>(options_.adam_beta2);
  args.f1 = static_cast<float>(1.0 - options_.adam_beta1);
  args.f2 = static_cast<float>(1.0 - options_.adam_beta2);
  args.h1 = static_cast<float>(1.0 - state_.beta1_power);
  args.h2 = static_cast<float>(1.0 - state_.beta2_power);
  args.eps = static_cast<float>(options_.adam_eps);
  const std::vector<ParameterRef> w = list(weights), master = list(state_.master),
                                  m = list(state_.m), v = list(state_.v);
  RLK_ASSERT(w.size() == grads.size());
  for (std::size_t i = 0; i < w.size(); ++i) {
    args.w = flat(*w[i].tensor);
    args.master = flat(*master[i].tensor);
    args.m = flat(*m[i].tensor);
    args.v = flat(*v[i].tensor);
    args.dw = flat(*grads[i].tensor);
    args.wd = w[i].decay ? static_cast<float>(options_.weight_decay) : 0.0f;
    adamw(ctx, args);
  }
  return {static_cast<double>(norm), rate};
}

}  // namespace rlk
