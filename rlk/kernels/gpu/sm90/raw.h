// Raw matrix instructions, for comparing a chip with its model.
#pragma once

#include <cstdint>

#include "rlk/core/dtype.h"
#include "rlk/device/device.h"

namespace rlk::gpu::sm90 {

enum class Instruction : std::uint8_t { kMmaSync, kWgmma };
// "sm90 mma.sync m16n8k16", "sm90 wgmma m64n64k16": the names in files of results.
const char* to_string(Instruction instruction);

// d = a b^T + c by one instruction per 16 values of k, in rising order.
//   d, c  out, in  f32  [rows, columns]  device memory, rows and columns multiples of 64
//   a, b  in       bf16 [rows, k], [columns, k]  k a multiple of 16
void run_instruction(device::Stream& stream, Instruction instruction, float* d, const float* c,
                     const bf16* a, const bf16* b, int rows, int columns, int k);

}  // namespace rlk::gpu::sm90
