// One conversion per struct of arguments, in the order of rlk.h. For rlk_c.cc only.
#pragma once

#include "rlk/kernels/kernel_table.h"
#include "rlk/ops/rlk_c_convert.h"

namespace rlk::c {

// The tensor of that name in both structs.
#define RLK_T(name) .name = f.tensor(#name, a.name)

inline EmbeddingArgs convert(Fields& f, const rlk_embedding_args& a) {
  RLK_FIELDS(EmbeddingArgs, 3 * kView);
  return {RLK_T(y), RLK_T(table), RLK_T(ids)};
}

inline EmbeddingBackwardArgs convert(Fields& f, const rlk_embedding_backward_args& a) {
  RLK_FIELDS(EmbeddingBackwardArgs, 3 * kView);
  return {RLK_T(dtable), RLK_T(dy), RLK_T(ids)};
}

inline CopyRowsArgs convert(Fields& f, const rlk_copy_rows_args& a) {
  RLK_FIELDS(CopyRowsArgs, 4 * kView + 8);
  f.in_range("reserved", a.reserved, 0, 0);
  return {RLK_T(y), RLK_T(x), RLK_T(from), RLK_T(to),
          .bounded = f.in_range("bounded", a.bounded, 0, 1) == 1};
}

inline ResidualAddArgs convert(Fields& f, const rlk_residual_add_args& a) {
  RLK_FIELDS(ResidualAddArgs, 3 * kView);
  return {RLK_T(y), RLK_T(a), RLK_T(b)};
}

inline RmsNormArgs convert(Fields& f, const rlk_rms_norm_args& a) {
  RLK_FIELDS(RmsNormArgs, 6 * kView + 8);
  f.in_range("reserved", a.reserved, 0, 0);
  return {RLK_T(y),     RLK_T(q),        RLK_T(x),           RLK_T(w),
          .eps = a.eps, RLK_T(residual), RLK_T(residual_out)};
}

inline RmsNormBackwardArgs convert(Fields& f, const rlk_rms_norm_backward_args& a) {
  RLK_FIELDS(RmsNormBackwardArgs, 5 * kView);
  return {RLK_T(dx), RLK_T(dy), RLK_T(x), RLK_T(w), RLK_T(q)};
}

inline RmsNormBackwardWeightArgs convert(Fields& f, const rlk_rms_norm_backward_weight_args& a) {
  RLK_FIELDS(RmsNormBackwardWeightArgs, 5 * kView);
  return {RLK_T(dw), RLK_T(dy), RLK_T(x), RLK_T(q), RLK_T(cu_seqlens)};
}

inline MergeHeadsArgs convert(Fields& f, const rlk_merge_heads_args& a) {
  RLK_FIELDS(MergeHeadsArgs, 2 * kView);
  return {RLK_T(dw), RLK_T(partial)};
}

inline RopeArgs convert(Fields& f, const rlk_rope_args& a) {
  RLK_FIELDS(RopeArgs, 5 * kView);
  return {RLK_T(y), RLK_T(x), RLK_T(cos), RLK_T(sin), RLK_T(positions)};
}

inline PackWeightArgs convert(Fields& f, const rlk_pack_weight_args& a) {
  RLK_FIELDS(PackWeightArgs, kView + 8);
  return {.packed = f.packed("packed", a.packed), RLK_T(w)};
}

inline GemmArgs convert(Fields& f, const rlk_gemm_args& a) {
  RLK_FIELDS(GemmArgs, 4 * kView + 8 + 8 + 24);
  return {RLK_T(c),
          RLK_T(a),
          RLK_T(b),
          .packed_b = f.packed(a.packed_b),
          RLK_T(bias),
          .leaf_tree = f.in_range("leaf_tree", a.leaf_tree, 0, 1) == 1,
          .segments = {a.segments[0], a.segments[1], a.segments[2]}};
}

inline GemmBackwardWeightArgs convert(Fields& f, const rlk_gemm_backward_weight_args& a) {
  RLK_FIELDS(GemmBackwardWeightArgs, 6 * kView);
  return {RLK_T(dw), RLK_T(chain), RLK_T(dy), RLK_T(x), RLK_T(group_ends), RLK_T(cu_seqlens)};
}

inline BiasBackwardArgs convert(Fields& f, const rlk_bias_backward_args& a) {
  RLK_FIELDS(BiasBackwardArgs, 3 * kView);
  return {RLK_T(dbias), RLK_T(dy), RLK_T(cu_seqlens)};
}

inline SwigluArgs convert(Fields& f, const rlk_swiglu_args& a) {
  RLK_FIELDS(SwigluArgs, 3 * kView);
  return {RLK_T(y), RLK_T(g), RLK_T(u)};
}

inline SwigluBackwardArgs convert(Fields& f, const rlk_swiglu_backward_args& a) {
  RLK_FIELDS(SwigluBackwardArgs, 5 * kView);
  return {RLK_T(dg), RLK_T(du), RLK_T(dy), RLK_T(g), RLK_T(u)};
}

inline KvView convert(Fields& f, const rlk_kv_view& a) {
  RLK_FIELDS(KvView, 4 * kView + 8);
  return {RLK_T(k), RLK_T(v), RLK_T(block_table), RLK_T(kv_start), .page_size = a.page_size};
}

inline AttentionArgs convert(Fields& f, const rlk_attention_args& a) {
  RLK_FIELDS(AttentionArgs, 5 * kView + sizeof(KvView));
  return {RLK_T(y),      RLK_T(lse), RLK_T(q), .kv = convert(f, a.kv), RLK_T(cu_seqlens_q),
          RLK_T(kv_lens)};
}

inline AttentionBackwardArgs convert(Fields& f, const rlk_attention_backward_args& a) {
  RLK_FIELDS(AttentionBackwardArgs, 10 * kView);
  return {RLK_T(dq), RLK_T(dk), RLK_T(dv), RLK_T(dy),  RLK_T(y),
          RLK_T(q),  RLK_T(k),  RLK_T(v),  RLK_T(lse), RLK_T(cu_seqlens)};
}

inline LogprobArgs convert(Fields& f, const rlk_logprob_args& a) {
  RLK_FIELDS(LogprobArgs, 5 * kView + 16);
  return {RLK_T(logp),
          RLK_T(entropy),
          RLK_T(logits),
          RLK_T(targets),
          .params = f.params(a.params),
          .num_params = a.num_params,
          RLK_T(state)};
}

inline LogprobBackwardArgs convert(Fields& f, const rlk_logprob_backward_args& a) {
  RLK_FIELDS(LogprobBackwardArgs, 6 * kView + 16);
  return {RLK_T(dlogits),
          RLK_T(logits),
          RLK_T(targets),
          RLK_T(g),
          RLK_T(g_entropy),
          .params = f.params(a.params),
          .num_params = a.num_params,
          RLK_T(state)};
}

inline LogSoftmaxArgs convert(Fields& f, const rlk_log_softmax_args& a) {
  RLK_FIELDS(LogSoftmaxArgs, 2 * kView + 16);
  return {RLK_T(y), RLK_T(logits), .params = f.params(a.params), .num_params = a.num_params};
}

inline LogSoftmaxBackwardArgs convert(Fields& f, const rlk_log_softmax_backward_args& a) {
  RLK_FIELDS(LogSoftmaxBackwardArgs, 3 * kView + 16);
  return {RLK_T(dlogits), RLK_T(logits), RLK_T(dy), .params = f.params(a.params),
          .num_params = a.num_params};
}

inline SampleArgs convert(Fields& f, const rlk_sample_args& a) {
  RLK_FIELDS(SampleArgs, 2 * kView + 16);
  return {RLK_T(token_ids), RLK_T(logits), .params = f.params(a.params), .keys = f.keys(a.keys)};
}

inline LinearLogpArgs convert(Fields& f, const rlk_linear_logp_args& a) {
  RLK_FIELDS(LinearLogpArgs, 6 * kView + 40);
  return {RLK_T(logp),
          RLK_T(entropy),
          RLK_T(hidden),
          RLK_T(head),
          .vocab_size = a.vocab_size,
          .packed_forward = f.packed(a.packed_forward),
          .packed_backward = f.packed(a.packed_backward),
          RLK_T(targets),
          .params = f.params(a.params),
          .num_params = a.num_params,
          RLK_T(state)};
}

inline LinearLogpBackwardArgs convert(Fields& f, const rlk_linear_logp_backward_args& a) {
  RLK_FIELDS(LinearLogpBackwardArgs, 7 * kView + sizeof(LinearLogpArgs));
  return {.forward = convert(f, load("linear_logp_backward: forward", a.forward)),
          RLK_T(d_hidden),
          RLK_T(dw),
          RLK_T(chain),
          RLK_T(group_ends),
          RLK_T(g),
          RLK_T(g_entropy),
          RLK_T(cu_seqlens)};
}

inline GroupAdvantagesArgs convert(Fields& f, const rlk_group_advantages_args& a) {
  RLK_FIELDS(GroupAdvantagesArgs, 2 * kView + 24);
  return {RLK_T(advantages), RLK_T(rewards), .group_size = a.group_size, .eps = a.eps,
          .ddof = a.ddof};
}

inline RatioArgs convert(Fields& f, const rlk_ratio_args& a) {
  RLK_FIELDS(RatioArgs, 4 * kView);
  return {RLK_T(ratio), RLK_T(logp), RLK_T(old), RLK_T(weight)};
}

inline Kl kl_type(Fields& f, std::int32_t type) {
  return static_cast<Kl>(f.in_range("kl_type", type, RLK_KL_NONE, RLK_KL_K3));
}

inline KlArgs convert(Fields& f, const rlk_kl_args& a) {
  RLK_FIELDS(KlArgs, 5 * kView + 8);
  f.in_range("reserved", a.reserved, 0, 0);
  return {RLK_T(kl),  RLK_T(slope),  RLK_T(logp),
          RLK_T(ref), RLK_T(weight), .kl_type = kl_type(f, a.kl_type)};
}

// rlk_grpo_loss_args, or rlk_ppo_loss_args, which has the same fields and more.
template <typename LossArgs>
GrpoLossArgs policy(Fields& f, const LossArgs& a) {
  RLK_FIELDS(GrpoLossArgs, 9 * kView + 16);
  return {RLK_T(g),
          RLK_T(pg_loss),
          RLK_T(kl),
          RLK_T(ratio),
          RLK_T(logp),
          RLK_T(old),
          RLK_T(ref),
          RLK_T(advantage),
          RLK_T(weight),
          .lo = a.lo,
          .hi = a.hi,
          .beta = a.beta,
          .kl_type = kl_type(f, a.kl_type)};
}

inline GrpoLossArgs convert(Fields& f, const rlk_grpo_loss_args& a) { return policy(f, a); }

inline PpoLossArgs convert(Fields& f, const rlk_ppo_loss_args& a) {
  RLK_FIELDS(PpoLossArgs, sizeof(GrpoLossArgs) + 6 * kView + 16);
  f.in_range("reserved", a.reserved, 0, 0);
  return {.policy = policy(f, a),
          RLK_T(g_value),
          RLK_T(v_loss),
          RLK_T(g_entropy),
          RLK_T(value),
          RLK_T(old_value),
          RLK_T(returns),
          .value_clip = a.value_clip,
          .value_coef = a.value_coef,
          .entropy_coef = a.entropy_coef};
}

inline GradNormArgs convert(Fields& f, const rlk_grad_norm_args& a) {
  RLK_FIELDS(GradNormArgs, 24);
  return {.norm = &f.required("norm", a.norm),
          .grads = f.tensors("grads", a.grads, a.num_grads),
          .num_grads = a.num_grads};
}

inline AdamwArgs convert(Fields& f, const rlk_adamw_args& a) {
  RLK_FIELDS(AdamwArgs, 5 * kView + 40);
  return {RLK_T(w),   RLK_T(master), RLK_T(m),   RLK_T(v),   RLK_T(dw),  .grad_scale = a.grad_scale,
          .lr = a.lr, .b1 = a.b1,    .b2 = a.b2, .f1 = a.f1, .f2 = a.f2, .h1 = a.h1,
          .h2 = a.h2, .eps = a.eps,  .wd = a.wd};
}

#undef RLK_T
#undef RLK_FIELDS

}  // namespace rlk::c
