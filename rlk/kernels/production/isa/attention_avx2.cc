// Attention with AVX2 and FMA. Only what is compiled here alone may be included.
#include <immintrin.h>

#include <cstdint>

#include "rlk/kernels/production/attention_isa.h"

namespace rlk::production {
namespace {

// Each text needs the ones before it.
// clang-format off
#include "rlk/kernels/cpu/isa/vec_avx2.h"
#include "rlk/kernels/cpu/isa/vec_math.h"
#include "rlk/kernels/cpu/isa/vec_storage.h"

using cpu::RowList;
constexpr int kTileVectors = 2;

#include "rlk/kernels/cpu/isa/attention_tile.h"
#include "rlk/kernels/production/isa/attention_body.h"
// clang-format on

}  // namespace

const AttentionIsa kAttentionAvx2 = kTable;

}  // namespace rlk::production
