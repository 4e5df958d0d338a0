// The operands of mma_sync, number by number (see mma_sync.h).
#pragma once

#include "rlk/kernels/gpu/sm90/mma_sync.h"
#include "rlk/kernels/gpu/views.h"

namespace rlk::gpu::sm90 {

RLK_DEVICE std::uint32_t pair(bf16 low, bf16 high) {
  return low.bits | (static_cast<std::uint32_t>(high.bits) << 16);
}

// load(row, k): row < 16, k < 16.
template <typename Load>
RLK_DEVICE void load_a(const Load& load, std::uint32_t (&a)[4]) {
  RLK_UNROLL
  for (int i = 0; i < 4; ++i) {
    const int row = thread() % 32 / 4 + i % 2 * 8;
    const int k = 2 * (thread() % 4) + i / 2 * 8;
    a[i] = pair(load(row, k), load(row, k + 1));
  }
}

// load(column, k): column < 8, k < 16.
template <typename Load>
RLK_DEVICE void load_b(const Load& load, std::uint32_t (&b)[2]) {
  RLK_UNROLL
  for (int i = 0; i < 2; ++i) {
    const int column = thread() % 32 / 4;
    const int k = 2 * (thread() % 4) + i * 8;
    b[i] = pair(load(column, k), load(column, k + 1));
  }
}

// Where sum i of a thread lies in the tile of 16 x 8.
RLK_DEVICE int sum_row(int i) { return thread() % 32 / 4 + i / 2 * 8; }
RLK_DEVICE int sum_column(int i) { return 2 * (thread() % 4) + i % 2; }

// Two tiles side by side, weights[tile][i] where their sums lie, as an operand of 16 x 16: each
// thread holds already what it needs.
RLK_DEVICE void a_of_tiles(const bf16 (&weights)[2][4], std::uint32_t (&a)[4]) {
  RLK_UNROLL
  for (int i = 0; i < 4; ++i) {
    const bf16* const two = weights[i / 2] + i % 2 * 2;
    a[i] = pair(two[0], two[1]);
  }
}

}  // namespace rlk::gpu::sm90
