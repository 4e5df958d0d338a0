// What the C and the C++ part of c_api_test share; read by both compilers.
#pragma once

#include "rlk/ops/rlk.h"

// Every operator that takes one struct.
#define C_API_OPS(X)                                             \
  X(embedding, rlk_embedding_args)                               \
  X(embedding_backward, rlk_embedding_backward_args)             \
  X(copy_rows, rlk_copy_rows_args)                               \
  X(residual_add, rlk_residual_add_args)                         \
  X(rms_norm, rlk_rms_norm_args)                                 \
  X(rms_norm_backward, rlk_rms_norm_backward_args)               \
  X(rms_norm_backward_weight, rlk_rms_norm_backward_weight_args) \
  X(merge_heads, rlk_merge_heads_args)                           \
  X(rope, rlk_rope_args)                                         \
  X(rope_backward, rlk_rope_backward_args)                       \
  X(pack_weight, rlk_pack_weight_args)                           \
  X(gemm, rlk_gemm_args)                                         \
  X(gemm_backward_weight, rlk_gemm_backward_weight_args)         \
  X(bias_backward, rlk_bias_backward_args)                       \
  X(swiglu, rlk_swiglu_args)                                     \
  X(swiglu_backward, rlk_swiglu_backward_args)                   \
  X(attention, rlk_attention_args)                               \
  X(attention_backward, rlk_attention_backward_args)             \
  X(logprob, rlk_logprob_args)                                   \
  X(logprob_backward, rlk_logprob_backward_args)                 \
  X(log_softmax, rlk_log_softmax_args)                           \
  X(log_softmax_backward, rlk_log_softmax_backward_args)         \
  X(sample, rlk_sample_args)                                     \
  X(linear_logp, rlk_linear_logp_args)                           \
  X(linear_logp_backward, rlk_linear_logp_backward_args)         \
  X(group_advantages, rlk_group_advantages_args)                 \
  X(ratio, rlk_ratio_args)                                       \
  X(kl, rlk_kl_args)                                             \
  X(grpo_loss, rlk_grpo_loss_args)                               \
  X(ppo_loss, rlk_ppo_loss_args)                                 \
  X(grad_norm, rlk_grad_norm_args)                               \
  X(adamw, rlk_adamw_args)

#define C_API_STRUCTS(X)                                 \
  C_API_OPS(X)                                           \
  X(tensor, rlk_tensor)                                  \
  X(kv_view, rlk_kv_view)                                \
  X(sampling_params, rlk_sampling_params)                \
  X(sample_key, rlk_sample_key)                          \
  X(context_options, rlk_context_options)

#ifdef __cplusplus
extern "C" {
#endif
extern const size_t kSizesInC[];

// How many calls with a NULL context, NULL arguments or struct_size 0 did not say so.
int wrong_answers_to_null(rlk_context* context);
#ifdef __cplusplus
}
#endif
