// Attention for a CPU without AVX2. Only what is compiled here alone may be included.
#include <cstdint>

#include "rlk/kernels/cpu/attention_isa.h"

namespace rlk::cpu {
namespace {

// Each text needs the ones before it.
// clang-format off
#include "rlk/kernels/cpu/isa/vec_scalar.h"
#include "rlk/kernels/cpu/isa/vec_math.h"

constexpr int kTileVectors = 2;  // with 6 rows, what the registers hold

#include "rlk/kernels/cpu/isa/attention_tile.h"
#include "rlk/kernels/cpu/isa/attention_forward.h"
#include "rlk/kernels/cpu/isa/attention_grad.h"
// clang-format on

}  // namespace

const AttentionIsa kAttentionScalar = RLK_ATTENTION_ISA;

}  // namespace rlk::cpu
