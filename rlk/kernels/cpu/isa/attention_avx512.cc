// Attention for AVX-512. Only what is compiled here alone may be included.
#include <immintrin.h>

#include <cstdint>

#include "rlk/kernels/cpu/attention_isa.h"

namespace rlk::cpu {
namespace {

// Each text needs the ones before it.
// clang-format off
#include "rlk/kernels/cpu/isa/vec_avx512.h"
#include "rlk/kernels/cpu/isa/vec_math.h"
#include "rlk/kernels/cpu/isa/vec_storage.h"

constexpr int kTileVectors = 4;  // with 6 rows, what the registers hold
// Register tiles of the path for few rows: 4 vectors of keys, or of columns of o, by 4 rows, and so
// on.
constexpr int kFewTileRows = 8;
constexpr int kFewKeyVectors = 4;
constexpr int few_key_vectors(int rows) { return rows <= 4 ? 4 : 2; }
constexpr int few_value_vectors(int rows) { return rows <= 2 ? 8 : rows <= 4 ? 4 : 2; }

#include "rlk/kernels/cpu/isa/attention_tile.h"
#include "rlk/kernels/cpu/isa/attention_model.h"
#include "rlk/kernels/cpu/isa/attention_forward.h"
#include "rlk/kernels/cpu/isa/attention_grad.h"
// clang-format on

}  // namespace

const AttentionTables kAttentionAvx512 = kAttentionTables;

}  // namespace rlk::cpu
