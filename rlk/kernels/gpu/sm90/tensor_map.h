// Descriptions of tensors for the copy engine.
#pragma once

#include <cuda.h>

#include <array>
#include <cstdint>

#include "rlk/core/tensor.h"

namespace rlk::gpu::sm90 {

// Whether the copy engine can read bf16 rows of t that are `stride` elements apart: 16-byte
// aligned, and so is their distance.
inline bool copyable(const ConstTensorView& t, std::int64_t stride) {
  return reinterpret_cast<std::uintptr_t>(t.data) % 16 == 0 && stride % 8 == 0 && stride > 0;
}

// Boxes of box_rows rows of 64 neighbours, with the 128-byte swizzle, out of bf16 [rows, columns]
// whose rows are row_stride elements apart. What lies outside reads as +0.
CUtensorMap tensor_map(const void* data, std::int64_t columns, std::int64_t rows,
                       std::int64_t row_stride, int box_rows);

// Boxes of box_blocks such columns of rows, one behind the other. Only whole 64 columns are inside.
CUtensorMap tensor_map_of_blocks(const void* data, std::int64_t columns, std::int64_t rows,
                                 std::int64_t row_stride, int box_rows, int box_blocks);

// The same out of bf16 [rows, heads, columns], one head at a time.
CUtensorMap tensor_map(const void* data, std::int64_t columns, std::int64_t heads,
                       std::int64_t head_stride, std::int64_t rows, std::int64_t row_stride,
                       int box_rows);

}  // namespace rlk::gpu::sm90
