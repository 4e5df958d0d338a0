#include "rlk/kernels/grpo_loss.h"

#include "rlk/kernels/gpu/elements.h"
#include "rlk/kernels/gpu/losses.h"
#include "rlk/kernels/gpu/table.h"
#include "rlk/kernels/ppo_loss.h"
#include "rlk/kernels/ratio.h"

namespace rlk::gpu {
namespace {

RLK_KERNEL(kElementThreads)
ratio_kernel(Ref<float> ratio, Ref<const float> logp, Ref<const float> old, Ref<const float> weight,
             std::int64_t n, unsigned long long* fault) {
  const std::int64_t t = block_x() * kElementThreads + thread();
  if (t >= n) return;
  float r = 0.0f;
  if (is_active(weight, t)) r = numerics::exp(logp(t) - old(t));
  if (!numerics::is_finite(r)) report(fault, t);
  ratio(t) = r;
}

RLK_KERNEL(kElementThreads)
kl_kernel(Ref<float> kl, Ref<float> slope, Ref<const float> logp, Ref<const float> ref,
          Ref<const float> weight, Kl type, std::int64_t n, unsigned long long* fault) {
  const std::int64_t t = block_x() * kElementThreads + thread();
  if (t >= n) return;
  KlTerm term{0.0f, 0.0f};
  if (is_active(weight, t)) term = kl_term(type, logp(t), ref(t));
  if (!numerics::is_finite(term.value)) report(fault, t);
  put(kl, t, term.value);
  put(slope, t, term.slope);
}

struct PolicyLoss {
  Ref<float> g, pg_loss, kl, ratio;
  Ref<const float> logp, old, ref, advantage, weight;
  float lo, hi, beta;
  Kl type;
};

RLK_KERNEL(kElementThreads)
policy_loss_kernel(PolicyLoss p, std::int64_t n, unsigned long long* fault) {
  const std::int64_t t = block_x() * kElementThreads + thread();
  if (t >= n) return;
  float g = 0.0f;
  float term = 0.0f;
  KlTerm kl{0.0f, 0.0f};
  float r = 0.0f;
  if (is_active(p.weight, t)) {
    const float weight = p.weight(t);
    const float logp = p.logp(t);
    const float a = p.advantage(t);
    r = numerics::exp(logp - p.old(t));
    const bool clipped = (a > 0.0f && r > p.hi) || (a < 0.0f && r < p.lo);
    const float pg = clipped ? 0.0f : -(a * r);
    kl = kl_term(p.type, logp, p.type == Kl::kNone ? logp : p.ref(t));
    g = numerics::fma(p.beta, kl.slope, pg) * weight;
    const float clamped = smaller(larger(r, p.lo), p.hi);
    term = -smaller(r * a, clamped * a);
    if (!numerics::is_finite(g)) report(fault, t);
  }
  put(p.g, t, g);
  put(p.pg_loss, t, term);
  put(p.kl, t, kl.value);
  put(p.ratio, t, r);
}

struct ValueLoss {
  Ref<float> g_value, v_loss, g_entropy;
  Ref<const float> value, old_value, returns, weight;
  float clip, value_coef, entropy_coef;
};

RLK_KERNEL(kElementThreads)
value_loss_kernel(ValueLoss p, std::int64_t n, unsigned long long* fault) {
  const std::int64_t t = block_x() * kElementThreads + thread();
  if (t >= n) return;
  float g = 0.0f;
  float loss = 0.0f;
  float g_entropy = 0.0f;
  if (is_active(p.weight, t)) {
    const float weight = p.weight(t);
    const float v = p.value(t);
    const float old = p.old_value(t);
    const float target = p.returns(t);
    const float clipped = smaller(larger(v, old - p.clip), old + p.clip);
    const float d = v - target;
    const float c = clipped - target;
    const bool held = c * c > d * d;
    g = (p.value_coef * (held ? 0.0f : d)) * weight;
    loss = 0.5f * (held ? c * c : d * d);
    g_entropy = -(p.entropy_coef * weight);
    if (!numerics::is_finite(g)) report(fault, t);
  }
  put(p.g_value, t, g);
  put(p.v_loss, t, loss);
  put(p.g_entropy, t, g_entropy);
}

Grid token_grid(std::int64_t n) { return {ceil_div(n, kElementThreads)}; }

}  // namespace

void ratio(Exec& exec, const RatioArgs& args) {
  const std::int64_t n = args.ratio.shape(0);
  launch(exec, token_grid(n), kElementThreads, 0, ratio_kernel, ref<float>(args.ratio),
         ref<float>(args.logp), ref<float>(args.old), ref<float>(args.weight), n,
         exec.gpu->fault());
}

void kl(Exec& exec, const KlArgs& args) {
  const std::int64_t n = args.kl.shape(0);
  launch(exec, token_grid(n), kElementThreads, 0, kl_kernel, ref<float>(args.kl),
         ref<float>(args.slope), ref<float>(args.logp), ref<float>(args.ref),
         ref<float>(args.weight), args.kl_type, n, exec.gpu->fault());
}

void grpo_loss(Exec& exec, const GrpoLossArgs& args) {
  const std::int64_t n = args.g.shape(0);
  const PolicyLoss p{ref<float>(args.g),
                     ref<float>(args.pg_loss),
                     ref<float>(args.kl),
                     ref<float>(args.ratio),
                     ref<float>(args.logp),
                     ref<float>(args.old),
                     ref<float>(args.ref),
                     ref<float>(args.advantage),
                     ref<float>(args.weight),
                     args.lo,
                     args.hi,
                     args.beta,
                     args.kl_type};
  launch(exec, token_grid(n), kElementThreads, 0, policy_loss_kernel, p, n, exec.gpu->fault());
}

void ppo_loss(Exec& exec, const PpoLossArgs& args) {
  grpo_loss(exec, args.policy);
  const std::int64_t n = args.g_value.shape(0);
  const ValueLoss p{ref<float>(args.g_value),
                    ref<float>(args.v_loss),
                    ref<float>(args.g_entropy),
                    ref<float>(args.value),
                    ref<float>(args.old_value),
                    ref<float>(args.returns),
                    ref<float>(args.policy.weight),
                    args.value_clip,
                    args.value_coef,
                    args.entropy_coef};
  launch(exec, token_grid(n), kElementThreads, 0, value_loss_kernel, p, n, exec.gpu->fault());
}

}  // namespace rlk::gpu
