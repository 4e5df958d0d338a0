// Attention for AVX2 with FMA. Only what is compiled here alone may be included.
#include <immintrin.h>

#include <cstdint>

#include "rlk/kernels/cpu/attention_isa.h"

namespace rlk::cpu {
namespace {

// Each text needs the ones before it.
// clang-format off
#include "rlk/kernels/cpu/isa/vec_avx2.h"
#include "rlk/kernels/cpu/isa/vec_math.h"
#include "rlk/kernels/cpu/isa/vec_storage.h"

constexpr int kTileVectors = 2;  // with 6 rows, what the registers hold
// Register tiles of the path for few rows.
constexpr int kFewTileRows = 4;
constexpr int kFewKeyVectors = 4;
constexpr int few_key_vectors(int rows) { return rows == 1 ? 4 : 2; }
constexpr int few_value_vectors(int rows) { return rows == 1 ? 8 : rows == 2 ? 4 : 2; }

#include "rlk/kernels/cpu/isa/attention_tile.h"
#include "rlk/kernels/cpu/isa/attention_model.h"
#include "rlk/kernels/cpu/isa/attention_forward.h"
#include "rlk/kernels/cpu/isa/attention_grad.h"
// clang-format on

}  // namespace

const AttentionTables kAttentionAvx2 = kAttentionTables;

}  // namespace rlk::cpu
