// Rows of storage that lie anywhere, as instruction set files take them.
#pragma once

#include <cstdint>

namespace rlk::cpu {

// Row i starts at rows[i] + offset. T is float, or std::uint16_t for the bits of bf16.
template <typename T>
struct RowList {
  const T* const* rows;
  std::int64_t offset;
};

}  // namespace rlk::cpu
