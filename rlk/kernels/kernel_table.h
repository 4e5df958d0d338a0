// The list of operators, and one table of implementations per backend.
#pragma once

#include <array>
#include <cstdint>

#include "rlk/kernels/adamw.h"
#include "rlk/kernels/attention.h"
#include "rlk/kernels/copy_rows.h"
#include "rlk/kernels/embedding.h"
#include "rlk/kernels/exec.h"
#include "rlk/kernels/gemm.h"
#include "rlk/kernels/group_advantages.h"
#include "rlk/kernels/grpo_loss.h"
#include "rlk/kernels/kl.h"
#include "rlk/kernels/linear_logp.h"
#include "rlk/kernels/logprob.h"
#include "rlk/kernels/ppo_loss.h"
#include "rlk/kernels/ratio.h"
#include "rlk/kernels/residual_add.h"
#include "rlk/kernels/rms_norm.h"
#include "rlk/kernels/rope.h"
#include "rlk/kernels/swiglu.h"

// Every operator once: its name and the struct of its arguments. Tables, dispatch, modes, traces
// and conformance all come from this list.
#define RLK_OPS(X)                                       \
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

namespace rlk {

enum class Op : std::uint8_t {
#define RLK_OP(name, Args) name,
  RLK_OPS(RLK_OP)
#undef RLK_OP
      kCount
};

inline constexpr int kNumOps = static_cast<int>(Op::kCount);
const char* to_string(Op op);

// The profiles of a table that gives the bits of this one alone, and of one that gives all.
constexpr std::uint8_t only(Profile profile) {
  return static_cast<std::uint8_t>(1u << static_cast<int>(profile));
}
inline constexpr std::uint8_t kEveryProfile = (1u << kAllProfiles.size()) - 1;

struct KernelTable {
  const char* backend = "";  // "reference", "cpu.avx512", "cuda.sm90", "production"
  // Bit i: the table gives the bits of profile i. Only products differ between profiles.
  std::uint8_t profiles = only(Profile::kPortable);
  const char* architecture = "";  // how the name of a GPU that it runs on begins; "": any GPU
  bool on_device = false;         // tensors lie in memory of a device, and Exec::gpu is set
  bool runs(Profile profile) const { return (profiles >> static_cast<int>(profile) & 1) != 0; }

#define RLK_OP(name, Args) void (*name)(Exec&, const Args&) = nullptr;
  RLK_OPS(RLK_OP)
#undef RLK_OP
};

// The contract, executed literally: slow, scalar, obvious. It defines the right bits.
const KernelTable& reference_kernels();

// Vectorised and multi-threaded for the instruction set of this CPU; the bits of the reference, in
// every profile.
const KernelTable& cpu_kernels();

// The instruction sets that cpu_kernels can run on this machine, best first: "avx512", "avx2",
// "scalar"; and the kernels for one of them.
enum class Isa : std::uint8_t { kScalar, kAvx2, kAvx512 };
inline constexpr std::array kAllIsas = {Isa::kScalar, Isa::kAvx2, Isa::kAvx512};
const char* to_string(Isa isa);
bool available(Isa isa);
const KernelTable& cpu_kernels(Isa isa);

// The usual fast route of an engine: vendor products, its own attention per phase, library
// exponentials. Other bits than the contract's, and other bits in rollout than in training.
const KernelTable& production_kernels();

// The contract's bits of one profile on a GPU: tensors lie in device memory and Exec::gpu is set.
// An operator without a GPU kernel has a null entry; in a build without this backend all are null,
// and `on_device` is false.
const KernelTable& gpu_kernels(Profile profile = Profile::kPortable);

// Of a table of gpu_kernels: the same for tensors in host memory, which travel to the device and
// back in each call, for conformance; errors of the device are thrown. Any other table itself.
const KernelTable& on_host_memory(const KernelTable& kernels);

}  // namespace rlk
