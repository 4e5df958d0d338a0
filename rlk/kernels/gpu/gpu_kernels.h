// The operators that have a GPU kernel.
#pragma once

#include "rlk/kernels/kernel_table.h"

// As RLK_OPS. An operator that is not here has a null entry in the table.
#define RLK_GPU_OPS(X)                                   \
  X(embedding, EmbeddingArgs)                            \
  X(embedding_backward, EmbeddingBackwardArgs)           \
  X(copy_rows, CopyRowsArgs)                             \
  X(residual_add, ResidualAddArgs)                       \
  X(rms_norm, RmsNormArgs)                               \
  X(rms_norm_backward, RmsNormBackwardArgs)              \
  X(rms_norm_backward_weight, RmsNormBackwardWeightArgs) \
  X(merge_heads, MergeHeadsArgs)                         \
  X(rope, RopeArgs)                                      \
  X(rope_backward, RopeArgs)                             \
  X(pack_weight, PackWeightArgs)                         \
  X(gemm, GemmArgs)                                      \
  X(gemm_backward_weight, GemmBackwardWeightArgs)        \
  X(bias_backward, BiasBackwardArgs)                     \
  X(swiglu, SwigluArgs)                                  \
  X(swiglu_backward, SwigluBackwardArgs)                 \
  X(attention, AttentionArgs)                            \
  X(attention_backward, AttentionBackwardArgs)           \
  X(logprob, LogprobArgs)                                \
  X(logprob_backward, LogprobBackwardArgs)               \
  X(log_softmax, LogSoftmaxArgs)                         \
  X(log_softmax_backward, LogSoftmaxBackwardArgs)        \
  X(sample, SampleArgs)                                  \
  X(linear_logp, LinearLogpArgs)                         \
  X(linear_logp_backward, LinearLogpBackwardArgs)        \
  X(group_advantages, GroupAdvantagesArgs)               \
  X(ratio, RatioArgs)                                    \
  X(kl, KlArgs)                                          \
  X(grpo_loss, GrpoLossArgs)                             \
  X(ppo_loss, PpoLossArgs)                               \
  X(grad_norm, GradNormArgs)                             \
  X(adamw, AdamwArgs)

// Those of them that are made of products, which other profiles than portable have of their own.
#define RLK_GPU_PRODUCT_OPS(X)                    \
  X(pack_weight, PackWeightArgs)                  \
  X(gemm, GemmArgs)                               \
  X(gemm_backward_weight, GemmBackwardWeightArgs) \
  X(attention, AttentionArgs)                     \
  X(attention_backward, AttentionBackwardArgs)    \
  X(linear_logp, LinearLogpArgs)                  \
  X(linear_logp_backward, LinearLogpBackwardArgs)

namespace rlk::gpu {

#if defined(__HIP_PLATFORM_AMD__)
inline constexpr const char* kBackend = "hip.portable";
#else
inline constexpr const char* kBackend = "cuda.portable";
#endif
inline constexpr const char* kBackendSm90 = "cuda.sm90";
inline constexpr const char* kBackendCdna3 = "hip.cdna3";
inline constexpr const char* kBackendCdna2 = "hip.cdna2";

}  // namespace rlk::gpu
