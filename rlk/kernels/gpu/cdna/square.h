// Matrices of 16 x 16 of a wave (gpu/any_shape.h) on mfma_16x16x16. The instruction's rows are
// places of the sums, so a lane's sums are neighbours.
#pragma once

#include "rlk/core/dtype.h"
#include "rlk/kernels/gpu/cdna/mfma.h"

namespace rlk::gpu::cdna {

// element(0 .. 3), a bf16 each.
template <typename Element>
RLK_DEVICE Half4 load_half4(const Element& element) {
  Half4 x;
  RLK_UNROLL
  for (int i = 0; i < 4; ++i) x[i] = static_cast<short>(element(i).bits);
  return x;
}

struct Square {
  static constexpr int kWave = cdna::kWave;
  static constexpr int kLines = 1;
  static constexpr int kSums = 4;
  using Operand = Half4;

  RLK_DEVICE static int line(int) { return thread() % 16; }
  RLK_DEVICE static int place(int j) { return row_16(thread() % kWave, j); }

  template <typename Element>
  RLK_DEVICE static Operand operand(const Element& element) {
    return load_half4([&](int j) { return element(0, j); });
  }
  // A group of CDNA2 is one Half4; on CDNA3 the sign of a product that is zero does not matter.
  RLK_DEVICE static bf16 padding(std::int64_t left) {
    return bf16{static_cast<std::uint16_t>(left <= place(0) ? kNegativeZero : 0)};
  }

  RLK_DEVICE static void multiply(Half4 a, Half4 b, float (&sums)[kSums]) {
    const Float4 d = mfma_16x16x16(b, a, Float4{sums[0], sums[1], sums[2], sums[3]});
    RLK_UNROLL
    for (int i = 0; i < kSums; ++i) sums[i] = d[i];
  }

  RLK_DEVICE static float max(float x) {
    x = larger(x, shuffle_xor(x, 16));
    return larger(x, shuffle_xor(x, 32));
  }
  RLK_DEVICE static float tree(const float (&x)[4]) {
    float sum = (x[0] + x[1]) + (x[2] + x[3]);
    sum = sum + shuffle_xor(sum, 16);
    return sum + shuffle_xor(sum, 32) + 0.0f;
  }
};

}  // namespace rlk::gpu::cdna
