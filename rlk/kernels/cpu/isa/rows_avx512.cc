// Operators that work row by row, with AVX-512.
#include <immintrin.h>

#include <cstdint>

#include "rlk/kernels/cpu/rows_isa.h"

namespace {

#include "rlk/kernels/cpu/isa/vec_avx512.h"
//
#include "rlk/kernels/cpu/isa/vec_int_avx512.h"
//
#include "rlk/kernels/cpu/isa/vec_math.h"
//
#include "rlk/kernels/cpu/isa/vec_storage.h"
//
#include "rlk/kernels/cpu/isa/vec_pair_avx512.h"
//
#include "rlk/kernels/cpu/isa/vec_pair.h"
//
#include "rlk/kernels/cpu/isa/rows_body.h"

}  // namespace

const rlk::cpu::RowsIsa rlk::cpu::kRowsAvx512 = kTable;
