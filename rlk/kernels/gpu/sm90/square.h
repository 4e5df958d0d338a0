// Matrices of 16 x 16 of a warp (gpu/any_shape.h) on mma.sync, whose b has 8 columns.
#pragma once

#include "rlk/core/dtype.h"
#include "rlk/kernels/gpu/sm90/mma_sync.h"

namespace rlk::gpu::sm90 {

struct Square {
  static constexpr int kWave = 32;
  static constexpr int kLines = 2;
  static constexpr int kSums = 8;
  struct Operand {
    std::uint32_t pairs[kLines][2];
  };

  RLK_DEVICE static int line(int h) { return thread() % 32 / 4 + 8 * h; }
  RLK_DEVICE static int place(int j) { return 2 * (thread() % 4) + j % 2 + j / 2 * 8; }

  template <typename Element>
  RLK_DEVICE static Operand operand(const Element& element) {
    Operand x;
    RLK_UNROLL
    for (int i = 0; i < 2 * kLines; ++i) {
      const std::uint32_t low = element(i / 2, i % 2 * 2).bits;
      const std::uint32_t high = element(i / 2, i % 2 * 2 + 1).bits;
      x.pairs[i / 2][i % 2] = low | high << 16;
    }
    return x;
  }
  RLK_DEVICE static bf16 padding(std::int64_t) { return {}; }

  RLK_DEVICE static void multiply(const Operand& a, const Operand& b, float (&sums)[kSums]) {
    const std::uint32_t left[4] = {a.pairs[0][0], a.pairs[1][0], a.pairs[0][1], a.pairs[1][1]};
    RLK_UNROLL
    for (int i = 0; i < 4; i += 2) {  // columns line(i / 2) of b: sums i, i + 1 of each line
      float d[4] = {sums[i], sums[i + 1], sums[i + 4], sums[i + 5]};
      mma_sync(d, left, b.pairs[i / 2]);
      sums[i] = d[0];
      sums[i + 1] = d[1];
      sums[i + 4] = d[2];
      sums[i + 5] = d[3];
    }
  }

  RLK_DEVICE static float max(float x) {
    x = larger(x, shuffle_xor(x, 1));
    return larger(x, shuffle_xor(x, 2));
  }
  RLK_DEVICE static float tree(const float (&x)[4]) {
    float low = x[0] + x[1];
    float high = x[2] + x[3];
    low = low + shuffle_xor(low, 1);
    high = high + shuffle_xor(high, 1);
    low = low + shuffle_xor(low, 2);
    high = high + shuffle_xor(high, 2);
    return low + high + 0.0f;
  }
};

}  // namespace rlk::gpu::sm90
