// The operators that have a GPU kernel, and the GPU backends.
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

// Every backend without its kernels, and its table; the same where the build has no kernels of it.
#if defined(__HIP_PLATFORM_AMD__)
inline constexpr KernelTable kPortableBackend = {.backend = "hip.portable"};
#else
inline constexpr KernelTable kPortableBackend = {.backend = "cuda.portable"};
#endif
inline constexpr KernelTable kSm90Backend = {
    .backend = "cuda.sm90", .profiles = only(Profile::kSm90), .architecture = "sm_90"};
inline constexpr KernelTable kCdna3Backend = {
    .backend = "hip.cdna3", .profiles = only(Profile::kCdna3), .architecture = "gfx942"};
inline constexpr KernelTable kCdna2Backend = {
    .backend = "hip.cdna2", .profiles = only(Profile::kCdna2), .architecture = "gfx90a"};

const KernelTable& portable_kernels();
const KernelTable& sm90_kernels();
const KernelTable& cdna3_kernels();
const KernelTable& cdna2_kernels();

// The same backend with the kernels of another: what a table that replaces some starts from.
inline KernelTable with_kernels_of(const KernelTable& kernels, const KernelTable& backend) {
  KernelTable table = kernels;
  table.backend = backend.backend;
  table.profiles = backend.profiles;
  table.architecture = backend.architecture;
  return table;
}

}  // namespace rlk::gpu
