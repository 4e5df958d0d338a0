// Raw matrix instructions, for comparing a chip with its model.
#pragma once

#include <cstdint>

#include "rlk/core/dtype.h"
#include "rlk/kernels/exec.h"

namespace rlk::gpu::cdna {

enum class Instruction : std::uint8_t { k16x16x16, k32x32x8 };

// sums += a b^T by one instruction per its own depth in k, in rising order.
//   sums  in-out  f32  [rows, columns]  device memory, rows and columns multiples of 16 or 32
//   a, b  in      bf16 [rows, k], [columns, k]  k a multiple of 16 or 8
void run_instruction(Exec& exec, Instruction instruction, float* sums, const bf16* a, const bf16* b,
                     int rows, int columns, int k);

}  // namespace rlk::gpu::cdna
