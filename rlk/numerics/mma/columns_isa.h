// Chains of a matrix instruction's model for many columns at once: what is compiled once per
// instruction set. Plain data and raw pointers only: no inline function of baseline code may be
// compiled with instruction set flags.
#pragma once

#include <cstdint>

namespace rlk::numerics::mma {

// acc[m, n] goes on with its chain through a[m, 0..k) and b[0..k, n], m in [0, rows), n in a panel
// of columns: groups of the instruction's width, the last padded with +0. Add (+0) where a chain is
// complete.
//   acc[m * acc_stride + n], a[m * a_row + k * a_step], b[k * b_stride + n]; a and b hold bf16
struct ColumnChains {
  float* acc;
  std::int64_t acc_stride;
  const float* a;
  std::int64_t a_row, a_step;
  const float* b;
  std::int64_t b_stride;
  std::int64_t rows, k;
};

struct ColumnsIsa {
  const char* name;  // "avx512"
  int panel;         // columns: two vectors
  void (*chains)(const ColumnChains& args);
};

extern const ColumnsIsa kHopperAvx2, kCdna3Avx2, kCdna2Avx2;
extern const ColumnsIsa kHopperAvx512, kCdna3Avx512, kCdna2Avx512;

// Products that the vectors take at a time: one group of Hopper, two of CDNA3, four of CDNA2.
inline constexpr int kColumnDepth = 16;

// One group by the scalar model; b has `stride` between its elements.
float hopper_column(float c, const float* a, const float* b, std::int64_t stride);
float cdna3_column(float c, const float* a, const float* b, std::int64_t stride);
float cdna2_column(float c, const float* a, const float* b, std::int64_t stride);

}  // namespace rlk::numerics::mma
