// Matrix instructions of no chip, for tests of the probe.
#pragma once

#include <bit>
#include <cstdint>

#include "rlk/kernels/raw_instructions.h"
#include "rlk/numerics/mma/mac.h"

namespace rlk {

// What the model of sm90 gives.
inline void run_exact(float* d, const float* c, const bf16* a, const bf16* b, int rows, int columns,
                      int k) {
  for (int m = 0; m < rows; ++m) {
    for (int n = 0; n < columns; ++n) {
      float sum = c[m * columns + n];
      for (int i = 0; i < k; i += 16) {
        sum = numerics::mma::hopper_group(sum, a + m * k + i, b + n * k + i);
      }
      d[m * columns + n] = sum;
    }
  }
}

// The last bit of row 5, column 7 is wrong in chains.
inline void run_wrong(float* d, const float* c, const bf16* a, const bf16* b, int rows, int columns,
                      int k) {
  run_exact(d, c, a, b, rows, columns, k);
  if (k == 16) return;
  float& x = d[5 * columns + 7];
  x = std::bit_cast<float>(std::bit_cast<std::uint32_t>(x) ^ 1);
}

// One instruction of the model of cdna3 takes two groups.
inline void run_cdna3(float* d, const float* c, const bf16* a, const bf16* b, int rows, int columns,
                      int k) {
  for (int i = 0; i < rows * columns; ++i) {
    float sum = c[i];
    for (int j = 0; j < k; j += 8) {
      sum = numerics::mma::cdna3_group(sum, a + i / columns * k + j, b + i % columns * k + j);
    }
    d[i] = sum;
  }
}

inline constexpr RawInstruction kCdna3AndHopper[] = {
    {"cdna3 exact", Profile::kCdna3, 16, 16, 16, run_cdna3},
    {"cdna3 hopper", Profile::kCdna3, 16, 16, 16, run_exact},
};

inline constexpr RawInstruction kExactAndWrong[] = {
    {"sm90 exact", Profile::kSm90, 16, 8, 16, run_exact},
    {"sm90 wrong", Profile::kSm90, 16, 8, 16, run_wrong},
};

}  // namespace rlk
