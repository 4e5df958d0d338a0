// Attention for a CPU without AVX2. Only what is compiled here alone may be included.
#include <cstdint>

#include "rlk/kernels/cpu/attention_isa.h"

namespace rlk::cpu {
namespace {

// Each text needs the ones before it.
// clang-format off
#include "rlk/kernels/cpu/isa/vec_scalar.h"
#include "rlk/kernels/cpu/isa/vec_math.h"
#include "rlk/kernels/cpu/isa/vec_storage.h"

constexpr int kTileVectors = 2;  // with 6 rows, what the registers hold
// Register tiles of the path for few rows.
constexpr int kFewTileRows = 4;
constexpr int kFewKeyVectors = 4;
constexpr int few_key_vectors(int) { return 1; }
constexpr int few_value_vectors(int) { return 2; }

#include "rlk/kernels/cpu/isa/attention_tile.h"
#include "rlk/kernels/cpu/isa/attention_model.h"
#include "rlk/kernels/cpu/isa/attention_forward.h"
#include "rlk/kernels/cpu/isa/attention_grad.h"
// clang-format on

}  // namespace

const AttentionTables kAttentionScalar = kAttentionTables;

}  // namespace rlk::cpu
