// The C arguments that mean the same as C++ ones, and where their tensors are.
#pragma once

#include <cstring>
#include <string>
#include <vector>

#include "rlk/ops/linear_logp.h"
#include "rlk/ops/rlk.h"

namespace rlk::test {

inline rlk_tensor to_c(const ConstTensorView& v) {
  rlk_tensor t{const_cast<void*>(v.data), static_cast<std::int32_t>(v.dtype), v.rank(), {}, {}};
  for (int d = 0; d < v.rank(); ++d) {
    t.shape[d] = v.shape(d);
    t.stride[d] = v.stride(d);
  }
  return t;
}

template <typename Args>
struct Call {
  struct Tensor {
    std::string name;
    std::size_t offset;
  };
  Args args{};
  std::vector<Tensor> tensors;

  Call() { args.struct_size = sizeof(Args); }
  void set(const char* name, rlk_tensor& field, const ConstTensorView& view) {
    field = to_c(view);
    const auto* begin = reinterpret_cast<const char*>(&args);
    tensors.push_back({name, static_cast<std::size_t>(reinterpret_cast<char*>(&field) - begin)});
  }
  rlk_tensor& at(const Tensor& tensor, Args& in) const {
    return *reinterpret_cast<rlk_tensor*>(reinterpret_cast<char*>(&in) + tensor.offset);
  }
};

inline const rlk_sampling_params* to_c(const SamplingParams* params) {
  return reinterpret_cast<const rlk_sampling_params*>(params);
}

#define T(name) call.set(#name, call.args.name, a.name)
#define V(name) call.args.name = a.name

inline auto to_c(const EmbeddingArgs& a) {
  Call<rlk_embedding_args> call;
  T(y), T(table), T(ids);
  return call;
}
inline auto to_c(const EmbeddingBackwardArgs& a) {
  Call<rlk_embedding_backward_args> call;
  T(dtable), T(dy), T(ids);
  return call;
}
inline auto to_c(const CopyRowsArgs& a) {
  Call<rlk_copy_rows_args> call;
  T(y), T(x), T(from), T(to), V(bounded);
  return call;
}
inline auto to_c(const ResidualAddArgs& a) {
  Call<rlk_residual_add_args> call;
  T(y), T(a), T(b);
  return call;
}
inline auto to_c(const RmsNormArgs& a) {
  Call<rlk_rms_norm_args> call;
  T(y), T(q), T(x), T(w), V(eps), T(residual), T(residual_out);
  return call;
}
inline auto to_c(const RmsNormBackwardArgs& a) {
  Call<rlk_rms_norm_backward_args> call;
  T(dx), T(dy), T(x), T(w), T(q);
  return call;
}
inline auto to_c(const RmsNormBackwardWeightArgs& a) {
  Call<rlk_rms_norm_backward_weight_args> call;
  T(dw), T(dy), T(x), T(q), T(cu_seqlens);
  return call;
}
inline auto to_c(const MergeHeadsArgs& a) {
  Call<rlk_merge_heads_args> call;
  T(dw), T(partial);
  return call;
}
inline auto to_c(const RopeArgs& a) {
  Call<rlk_rope_args> call;
  T(y), T(x), T(cos), T(sin), T(positions);
  return call;
}
inline auto to_c(const GemmArgs& a) {
  Call<rlk_gemm_args> call;
  T(c), T(a), T(b), T(bias), V(leaf_tree);
  for (int i = 0; i < 3; ++i) call.args.segments[i] = a.segments[static_cast<std::size_t>(i)];
  return call;
}
inline auto to_c(const GemmBackwardWeightArgs& a) {
  Call<rlk_gemm_backward_weight_args> call;
  T(dw), T(chain), T(dy), T(x), T(group_ends), T(cu_seqlens);
  return call;
}
inline auto to_c(const BiasBackwardArgs& a) {
  Call<rlk_bias_backward_args> call;
  T(dbias), T(dy), T(cu_seqlens);
  return call;
}
inline auto to_c(const SwigluArgs& a) {
  Call<rlk_swiglu_args> call;
  T(y), T(g), T(u);
  return call;
}
inline auto to_c(const SwigluBackwardArgs& a) {
  Call<rlk_swiglu_backward_args> call;
  T(dg), T(du), T(dy), T(g), T(u);
  return call;
}
inline auto to_c(const AttentionArgs& a) {
  Call<rlk_attention_args> call;
  T(y), T(lse), T(q), T(kv.k), T(kv.v), T(kv.block_table), T(kv.kv_start), V(kv.page_size);
  T(cu_seqlens_q), T(kv_lens);
  return call;
}
inline auto to_c(const AttentionBackwardArgs& a) {
  Call<rlk_attention_backward_args> call;
  T(dq), T(dk), T(dv), T(dy), T(y), T(q), T(k), T(v), T(lse), T(cu_seqlens);
  return call;
}
inline auto to_c(const LogprobArgs& a) {
  Call<rlk_logprob_args> call;
  T(logp), T(entropy), T(logits), T(targets), T(state), V(num_params);
  call.args.params = to_c(a.params);
  return call;
}
inline auto to_c(const LogprobBackwardArgs& a) {
  Call<rlk_logprob_backward_args> call;
  T(dlogits), T(logits), T(targets), T(g), T(g_entropy), T(state), V(num_params);
  call.args.params = to_c(a.params);
  return call;
}
inline auto to_c(const LogSoftmaxArgs& a) {
  Call<rlk_log_softmax_args> call;
  T(y), T(logits), V(num_params);
  call.args.params = to_c(a.params);
  return call;
}
inline auto to_c(const LogSoftmaxBackwardArgs& a) {
  Call<rlk_log_softmax_backward_args> call;
  T(dlogits), T(logits), T(dy), V(num_params);
  call.args.params = to_c(a.params);
  return call;
}
inline auto to_c(const SampleArgs& a) {
  Call<rlk_sample_args> call;
  T(token_ids), T(logits);
  call.args.params = to_c(a.params);
  call.args.keys = reinterpret_cast<const rlk_sample_key*>(a.keys);
  return call;
}
inline auto to_c(const LinearLogpArgs& a) {
  Call<rlk_linear_logp_args> call;
  T(logp), T(entropy), T(hidden), T(head), T(targets), T(state), V(vocab_size), V(num_params);
  call.args.params = to_c(a.params);
  return call;
}
inline auto to_c(const LinearLogpBackwardArgs& a) {
  Call<rlk_linear_logp_backward_args> call;
  T(d_hidden), T(dw), T(chain), T(group_ends), T(g), T(g_entropy), T(cu_seqlens);
  return call;
}
inline auto to_c(const GroupAdvantagesArgs& a) {
  Call<rlk_group_advantages_args> call;
  T(advantages), T(rewards), V(group_size), V(eps), V(ddof);
  return call;
}
inline auto to_c(const RatioArgs& a) {
  Call<rlk_ratio_args> call;
  T(ratio), T(logp), T(old), T(weight);
  return call;
}
inline auto to_c(const KlArgs& a) {
  Call<rlk_kl_args> call;
  T(kl), T(slope), T(logp), T(ref), T(weight);
  call.args.kl_type = static_cast<std::int32_t>(a.kl_type);
  return call;
}
template <typename CArgs>
Call<CArgs> policy_to_c(const GrpoLossArgs& a) {
  Call<CArgs> call;
  T(g), T(pg_loss), T(kl), T(ratio), T(logp), T(old), T(ref), T(advantage), T(weight);
  V(lo), V(hi), V(beta);
  call.args.kl_type = static_cast<std::int32_t>(a.kl_type);
  return call;
}
inline auto to_c(const GrpoLossArgs& a) { return policy_to_c<rlk_grpo_loss_args>(a); }
inline auto to_c(const PpoLossArgs& a) {
  auto call = policy_to_c<rlk_ppo_loss_args>(a.policy);
  T(g_value), T(v_loss), T(g_entropy), T(value), T(old_value), T(returns);
  V(value_clip), V(value_coef), V(entropy_coef);
  return call;
}
inline auto to_c(const AdamwArgs& a) {
  Call<rlk_adamw_args> call;
  T(w), T(master), T(m), T(v), T(dw), V(grad_scale), V(lr);
  V(b1), V(b2), V(f1), V(f2), V(h1), V(h2), V(eps), V(wd);
  return call;
}

#undef T
#undef V

}  // namespace rlk::test
