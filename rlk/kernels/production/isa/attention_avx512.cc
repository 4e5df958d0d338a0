// Attention with AVX-512. Only what is compiled here alone may be included.
#include <immintrin.h>

#include <cstdint>

#include "rlk/kernels/production/attention_isa.h"

namespace rlk::production {
namespace {

// Each text needs the ones before it.
// clang-format off
#include "rlk/kernels/cpu/isa/vec_avx512.h"
#include "rlk/kernels/cpu/isa/vec_math.h"
#include "rlk/kernels/cpu/isa/vec_storage.h"

using cpu::RowList;
constexpr int kTileVectors = 4;

#include "rlk/kernels/cpu/isa/attention_tile.h"
#include "rlk/kernels/production/isa/attention_body.h"
// clang-format on

}  // namespace

const AttentionIsa kAttentionAvx512 = kTable;

}  // namespace rlk::production
