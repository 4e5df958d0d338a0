// Row by row operators, compiled for the instruction set in the file's name.
#include <immintrin.h>

#include <cstdint>

#include "rlk/kernels/production/rows_isa.h"

namespace {

// Each text needs the ones before it.
// clang-format off
#include "rlk/kernels/cpu/isa/vec_avx512.h"
#include "rlk/kernels/cpu/isa/vec_math.h"
#include "rlk/kernels/production/isa/rows_body.h"
// clang-format on

}  // namespace

const rlk::production::RowsIsa rlk::production::kRowsAvx512 = kTable;
