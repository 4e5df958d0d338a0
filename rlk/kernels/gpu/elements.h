// How threads share the elements of a matrix [rows, n]: each takes kWidth neighbours of a row.
#pragma once

#include "rlk/kernels/gpu/views.h"

namespace rlk::gpu {

inline constexpr int kWidth = 8;
inline constexpr int kElementThreads = 256;

inline std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// For 32-bit numbers the division of 32 bits, which is much faster on a GPU.
RLK_HD inline std::int64_t divide(std::int64_t a, std::int64_t b) {
  if (((a | b) >> 32) == 0) return static_cast<std::uint32_t>(a) / static_cast<std::uint32_t>(b);
  return a / b;
}

// The grid for [rows, n], and a thread's place in it.
inline Grid element_grid(std::int64_t rows, std::int64_t n) {
  return {ceil_div(rows * ceil_div(n, kWidth), kElementThreads)};
}
struct Place {
  std::int64_t row;  // rows or more: nothing to do
  std::int64_t k;
};
RLK_DEVICE Place place(std::int64_t n) {
  const std::int64_t packs_per_row = divide(n + kWidth - 1, kWidth);
  const std::int64_t i = block_x() * kElementThreads + thread();
  const std::int64_t row = divide(i, packs_per_row);
  return {row, (i - row * packs_per_row) * kWidth};
}

}  // namespace rlk::gpu
