// Operators that work row by row, without vector instructions.
#include <cstdint>

#include "rlk/kernels/cpu/rows_isa.h"

namespace {

#include "rlk/kernels/cpu/isa/vec_scalar.h"
//
#include "rlk/kernels/cpu/isa/vec_int_scalar.h"
//
#include "rlk/kernels/cpu/isa/vec_math.h"
//
#include "rlk/kernels/cpu/isa/vec_storage.h"
//
#include "rlk/kernels/cpu/isa/vec_pair_scalar.h"
//
#include "rlk/kernels/cpu/isa/vec_pair.h"
//
#include "rlk/kernels/cpu/isa/rows_body.h"

}  // namespace

const rlk::cpu::RowsIsa rlk::cpu::kRowsScalar = kTable;
