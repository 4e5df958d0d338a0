// Operators that work row by row, with AVX2 and FMA.
#include <immintrin.h>

#include <cstdint>

#include "rlk/kernels/cpu/rows_isa.h"

namespace {

#include "rlk/kernels/cpu/isa/vec_avx2.h"
//
#include "rlk/kernels/cpu/isa/vec_int_avx2.h"
//
#include "rlk/kernels/cpu/isa/vec_math.h"
//
#include "rlk/kernels/cpu/isa/vec_storage.h"
//
#include "rlk/kernels/cpu/isa/vec_pair_avx2.h"
//
#include "rlk/kernels/cpu/isa/vec_pair.h"
//
#include "rlk/kernels/cpu/isa/rows_body.h"

}  // namespace

const rlk::cpu::RowsIsa rlk::cpu::kRowsAvx2 = kTable;
